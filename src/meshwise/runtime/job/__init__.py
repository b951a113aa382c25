"""The processes of a `jax.distributed` job: what they tell each other without devices.

Others use `job.Job`, `job.current_job` and `agreement.check_agreement`.
"""
