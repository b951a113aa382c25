"""Arrays between processes by `jax.device_put`: over NCCL on GPUs, ICI on TPUs, sockets on CPUs.

JAX tells such transfers apart by a number that each process counts up, so every process makes every
call, in one order; one that has neither end gives an array of which it has nothing.  An order that
differs loses or exchanges arrays: what every process carries out is compared before the first step
(`check_agreement`), and no call depends on what a process has.

A step that fails in one process only leaves its count behind those of the others, and nothing can
break their wait.  From then on the process sends nothing and raises an error instead, so that it
ends; `jax.distributed` then ends the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import jax
from jax import Array
from jax.sharding import SingleDeviceSharding

from meshwise.errors import TransportError
from meshwise.runtime.devices import array_of
from meshwise.runtime.job.job import Job
from meshwise.runtime.transports.transport import Passage

_SOCKET = "jax_cross_host_transfer_socket_address"
_ADDRESSES = "jax_cross_host_transport_addresses"


class DevicePutTransport:
    """Sends arrays with `jax.device_put`, one at a time, in the order of all processes."""

    # JAX has one count for all transports of a process, so that a failure is one of all of them.
    _failure: ClassVar[TransportError | None] = None

    def __init__(self, job: Job) -> None:
        """Check that JAX can do it in every process.

        Args:
            job: The processes, all of which make a transport here.

        Raises:
            TransportError: JAX cannot do it in some process; raised in all of them.
        """
        self._process = job.process
        reasons = job.exchange("the check of jax.device_put between processes", _missing())
        for process, reason in enumerate(reasons):
            if reason:
                raise TransportError(f"process {process} cannot send arrays: {reason}")

    @property
    def process(self) -> int:
        """The number of this process."""
        return self._process

    @property
    def is_collective(self) -> bool:
        """True: every process counts every passage."""
        return True

    def pass_all(self, passages: Sequence[Passage], label: str) -> list[Array | None]:
        """Start to send and to receive; see `Transport.pass_all`."""
        self.check()
        try:
            return [self._passed(passage) for passage in passages]
        except BaseException as error:
            self.abandon(error)
            error.add_note(f"while process {self._process} sent or received {label}")
            raise

    def _passed(self, passage: Passage) -> Array | None:
        """Start one transfer; return what arrives if it arrives here."""
        source = SingleDeviceSharding(passage.source)
        spec = jax.ShapeDtypeStruct(passage.shape, passage.dtype, sharding=source)
        given = array_of(spec, [] if passage.value is None else [passage.value])
        found = jax.device_put(given, SingleDeviceSharding(passage.destination))
        return found if passage.destination.process_index == self._process else None

    def check(self) -> None:
        """Raise what ended the order of transfers."""
        if self._failure is not None:
            raise self._failure

    def abandon(self, error: BaseException) -> None:
        """Send nothing any more: this process may have counted fewer transfers than the others."""
        if self._failure is None:
            DevicePutTransport._failure = TransportError(
                f"process {self._process} failed in the midst of a step ({type(error).__name__}: "
                f"{error}), and no longer counts transfers as the others do; start the job again"
            )


def _missing() -> str:
    """Return why JAX cannot send arrays from this process to others; nothing if it can."""
    kinds = sorted({device.device_kind for device in jax.devices()})
    if len(kinds) > 1:
        return f"jax.device_put sends between devices of one kind, these are {', '.join(kinds)}"
    client: Any = jax.local_devices()[0].client
    if getattr(client, "supports_cross_host_transfers", False) or jax.config.read(_SOCKET):
        return ""
    return (
        f"its backend ({client.platform}) needs {_SOCKET}, a HOST:PORT of its own that the others "
        f"reach, and {_ADDRESSES}, as HOST:0; set them with jax.config.update before "
        "jax.distributed.initialize, or start the job with `meshwise launch`, which does"
    )
