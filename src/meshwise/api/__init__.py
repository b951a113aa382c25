"""What users call: `parallelize`, `ParallelStep`, and the cluster of this process or job.

Others use `parallelize`, `parallel_step.ParallelStep` and `cluster.Cluster`; all else here
takes calls apart and keeps what was planned and compiled.
"""
