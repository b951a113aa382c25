"""What users call: `parallelize`, `ParallelStep`, and the cluster of this process.

Others use `parallelize`, `parallel_step.ParallelStep` and `local_cluster.Cluster`; all else here
takes calls apart and keeps what was planned and compiled.
"""
