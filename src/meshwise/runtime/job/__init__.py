"""The processes of a `jax.distributed` job: what they tell each other before and beside the devices.

Others use `job.Job`, `job.current_job` and `agreement.check_agreement`.
"""
