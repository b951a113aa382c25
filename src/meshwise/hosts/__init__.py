"""Hosts of a job: what each of them reads.

Others use `data.loader.Loader` and `data.host_batch.host_batch`.
"""
