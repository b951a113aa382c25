"""One process of a job that is sent an array by a process which has no use for its transport then.

The receiver connects when the sender has dropped its transport, and has its array all the same.
"""

from __future__ import annotations

import gc
import sys

import jax
import numpy as np

from hosts.joined import join
from meshwise.runtime.job.job import Job, current_job
from meshwise.runtime.transports.sockets import SocketTransport
from meshwise.runtime.transports.transport import Passage


def check(job: Job) -> None:
    """Send from process 0 to process 1."""
    transport = SocketTransport(job)
    source, destination = (
        next(d for d in jax.devices() if d.process_index == process) for process in range(2)
    )
    whole = np.arange(4, dtype=np.float32)
    passage = Passage(
        key=1,
        shape=whole.shape,
        dtype=whole.dtype,
        source=source,
        destination=destination,
        value=jax.device_put(whole, source) if job.process == 0 else None,
    )
    if job.process == 0:
        transport.pass_all([passage], "a vector")
        del transport
        gc.collect()
        job.exchange("the sender is done", "")
    else:
        job.exchange("the sender is done", "")
        (arrived,) = transport.pass_all([passage], "a vector")
        np.testing.assert_array_equal(np.asarray(arrived), whole)
    job.exchange("the end of the test", "")


if __name__ == "__main__":
    join()
    found = current_job()
    assert found is not None
    check(found)
    sys.stdout.write("passed\n")
    jax.distributed.shutdown()
