"""Batches in a job: each process has the rows that its own devices take.

Others use `loader.Loader`, which reads them from a source of examples, and `host_batch.host_batch`
for rows that a process has already.
"""
