"""The threads of XLA:CPU in a process of a job.

A collective between processes holds a thread for each device until all of them have come.  Where
none is left, `jax.device_put` between processes, and with it the job, waits for ever.  Measured on
2 cores with JAX 0.10.2, 2026-11: of jobs that transfer before an all-reduce 5 of 6 hung with as
many threads as devices, and none of 8 with one more; 300 sums in flight over two processes hung
with three threads for two devices, and not with four.
"""

from __future__ import annotations

import os

from meshwise.system.cores import schedulable_cores

# The environment variable that says their number, by default one for each core; it is read when
# Python starts.
NUM_THREADS = "NPROC"
_PER_DEVICE = 2


def threads_needed(num_devices: int) -> int:
    """Return how many threads a process needs.

    Args:
        num_devices: Its virtual devices.
    """
    return _PER_DEVICE * num_devices


def thread_variables(num_devices: int, num_cores: int | None = None) -> dict[str, str]:
    """Return the environment variable for a process that is started.

    Args:
        num_devices: Its virtual devices.
        num_cores: The cores that it has; None: those of this process.
    """
    cores = schedulable_cores() if num_cores is None else num_cores
    return {NUM_THREADS: str(max(cores, threads_needed(num_devices)))}


def own_threads() -> int:
    """Return how many threads XLA:CPU has in this process."""
    told = os.environ.get(NUM_THREADS, "")
    return int(told) if told.isdigit() else schedulable_cores()
