"""The way between the processes of a job.

Accelerators have fast links that only their backends use: there it is `jax.device_put`.  CPUs, and
devices of several kinds, which JAX does not send between, have sockets.
"""

from __future__ import annotations

import jax

from meshwise.runtime.job.job import Job, TransportName
from meshwise.runtime.transports.device_put import DevicePutTransport
from meshwise.runtime.transports.sockets import SocketTransport
from meshwise.runtime.transports.transport import Transport


def transport_of(job: Job) -> Transport:
    """Return a new way between the processes of a job; all of them make one here.

    Args:
        job: The processes.

    Raises:
        TransportError: there is no such way; raised in all processes.
    """
    match job.transport or _default():
        case "sockets":
            return SocketTransport(job)
        case "device_put":
            return DevicePutTransport(job)


def _default() -> TransportName:
    """Return the way that suits the devices of all processes."""
    devices = jax.devices()
    is_cpu = devices[0].platform == "cpu"
    return "sockets" if is_cpu or len({d.device_kind for d in devices}) > 1 else "device_put"
