"""Arrays between processes by the sockets of `jax.experimental.transfer`.

The receiver pulls; which of the two sides comes first does not matter.  The sender's server keeps
an array until it was pulled, unless it is deleted or donated before.  A pull from a process that
has died fails; one from a process that lives and never offers the array would wait for ever, so a
thread watches a pull from each process, and breaks the connection after a while.
"""

from __future__ import annotations

import atexit
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import ref

import jax
from jax import Array
from jax.experimental import transfer
from jax.sharding import SingleDeviceSharding

from meshwise.errors import TransportError
from meshwise.runtime.job.job import PATIENCE_S, Job
from meshwise.runtime.job.pending import is_there
from meshwise.runtime.transports.transport import Passage

_WATCH_EVERY_S = 1.0
# How long the end of the process waits for a look of the watch.
_LEAVE_S = 3.0


@dataclass(slots=True)
class _Waiting:
    """A pull that is watched."""

    array: Any
    label: str
    since_s: float


class SocketTransport:
    """Servers in this process, one for each process that it sends to, and connections to others.

    A server sends what it is asked for in turn, whoever asks: with one server a small array to one
    process would wait for a large one to another.
    """

    def __init__(self, job: Job, *, patience_s: float = PATIENCE_S) -> None:
        """Nothing is connected yet.

        Args:
            job: The processes, all of which make a transport here.
            patience_s: How long a pull may wait for the other side.
        """
        self._job = job
        self._patience_s = patience_s
        self._name = f"the address of transfers {job.count('transports')}"
        self._servers: dict[int, Any] = {}
        self._connections: dict[int, Any] = {}
        # For each process the pull that is watched, and the latest one, which comes after it.
        self._watched: dict[int, _Waiting] = {}
        self._latest: dict[int, _Waiting] = {}
        self._failure: TransportError | None = None
        self._lock = threading.Lock()
        _start_watch(ref(self), (self._servers, self._connections), patience_s)
        if job.whereabouts is not None:
            job.whereabouts.watch(partial(_waiting, ref(self)))

    @property
    def process(self) -> int:
        """The number of this process."""
        return self._job.process

    @property
    def is_collective(self) -> bool:
        """False: only the two processes of a passage take part."""
        return False

    def pass_all(self, passages: Sequence[Passage], label: str) -> list[Array | None]:
        """Start to send and to receive; see `Transport.pass_all`."""
        self.check()
        found: list[Array | None] = []
        for each in passages:
            arrived = None
            if each.value is not None:
                server = self._server(each.destination.process_index)
                server.await_pull(each.key, [each.value])
            elif each.destination.process_index == self.process:
                arrived = self._pull(each, label)
            found.append(arrived)
        return found

    def _server(self, peer: int) -> Any:
        """Return what sends to another process, which is told its address when it is made."""
        if peer not in self._servers:
            client = jax.local_devices()[0].client
            address = f"{own_address(self._job.coordinator)}:0"
            self._servers[peer] = transfer.start_transfer_server(client, address, [address])
            self._job.publish(f"{self._name} to {peer}", self._servers[peer].address())
        return self._servers[peer]

    def _connection(self, peer: int) -> Any:
        """Return the connection to what another process sends from; it is waited for."""
        if peer not in self._connections:
            # The other one may wait for the address of this one, too.
            server = self._server(peer)
            name = f"{self._name} to {self.process}"
            address = self._job.published(name, peer, patience_s=self._patience_s)
            self._connections[peer] = server.connect(address)
        return self._connections[peer]

    def _pull(self, passage: Passage, label: str) -> Array:
        peer = passage.source.process_index
        there = SingleDeviceSharding(passage.destination)
        wanted = jax.ShapeDtypeStruct(passage.shape, passage.dtype, sharding=there)
        (array,) = self._connection(peer).pull(passage.key, [wanted])
        with self._lock:
            self._latest[peer] = _Waiting(array, label, time.monotonic())
        return array

    def check(self) -> None:
        """Raise what the watch found."""
        if self._failure is not None:
            raise self._failure

    def abandon(self, error: BaseException) -> None:
        """Refuse what comes after a failure: what was counted may differ from other processes."""
        if self._failure is None:
            self._failure = TransportError(
                f"process {self.process} failed in an earlier step ({type(error).__name__}: "
                f"{error}), and may have come apart from the others; start the job again from the "
                "last checkpoint"
            )

    def watch(self) -> None:
        """Look once whether what is waited for has come; break connections that wait too long."""
        now = time.monotonic()
        try:
            self._job.check()
        except TransportError as error:
            if self._failure is None:
                self._failure = error
                for connection in list(self._connections.values()):
                    connection._poison_connection()
        with self._lock:
            for peer in list(self._latest.keys() | self._watched.keys()):
                waiting = self._watched.get(peer) or self._latest.pop(peer)
                if is_there(waiting.array):
                    self._watched.pop(peer, None)
                elif now - waiting.since_s < self._patience_s:
                    self._watched[peer] = waiting
                else:
                    self._failure = TransportError(
                        f"process {self.process} waited {self._patience_s:.0f} s for "
                        f"{waiting.label} from process {peer}, which has not sent it; see what "
                        "that process does, or whether it still runs"
                    )
                    self._connections.pop(peer)._poison_connection()

    def waiting(self) -> tuple[str, float] | None:
        """Return what is waited for longest, and for how many seconds; None if nothing is."""
        now = time.monotonic()
        with self._lock:
            pulls = {**self._latest, **self._watched}
        late = [
            (now - pull.since_s, peer, pull.label)
            for peer, pull in pulls.items()
            if not is_there(pull.array)
        ]
        if not late:
            return None
        waited_s, peer, label = max(late)
        return f"{label} from process {peer}", waited_s


def _waiting(transport: ref[SocketTransport]) -> tuple[str, float] | None:
    """Return what a transport waits for, if it is still there."""
    found = transport()
    return None if found is None else found.waiting()


def own_address(coordinator: str) -> str:
    """Return the address by which others reach this process: that of its way to the coordinator.

    Args:
        coordinator: `host:port` of process 0.
    """
    host, _, port = coordinator.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, int(port)))  # Nothing is sent.
        return probe.getsockname()[0]


def _start_watch(transport: ref[SocketTransport], kept: object, patience_s: float) -> None:
    """Watch a transport while it is there, and keep what belongs to it as long as others may wait.

    A server is gone when nothing refers to it; a process that has yet to connect waits for ever.
    At the end of the process the watch ends first: a thread that comes from C++ into an interpreter
    which shuts down may abort the process.
    """
    ending = threading.Event()

    def watch() -> None:
        while (found := transport()) is not None:
            found.watch()
            del found
            if ending.wait(_WATCH_EVERY_S):
                return
        if not ending.wait(patience_s):
            atexit.unregister(leave)

    thread = threading.Thread(target=watch, name="watch", daemon=True)
    # What is kept stays until JAX, too, has left the job.
    leave = partial(_leave, ending, thread, kept)
    atexit.register(leave)
    thread.start()


def _leave(ending: threading.Event, thread: threading.Thread, _kept: object) -> None:
    ending.set()
    thread.join(_LEAVE_S)
