"""The processes of a job, and how they tell each other texts without any device.

All processes run one program, so they come to the same places in the same order.  Each such place
is a *turn*: every process says there what it is at, so that processes which have come apart get an
error that says so, where collectives of devices would wait for ever.
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Literal, TypeAlias

import jax

from meshwise.errors import ClusterError, MeshwiseError, TransportError
from meshwise.jax_compat.jobs import KeyValueStore, job_state
from meshwise.runtime.job.heartbeat import Heartbeat, heartbeat_of
from meshwise.runtime.job.whereabouts import Whereabouts

# How arrays get from process to process.
TransportName: TypeAlias = Literal["sockets", "device_put"]

# How long a process waits for others to come to the same place.  `jax.distributed.initialize`
# waits as long for processes that start.
PATIENCE_S = 300.0
_ROOT = "meshwise"
# A wait is made of short ones, so that Ctrl-C ends it.
_SLICE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The processes that `jax.distributed.initialize` joined, as one of them sees them.

    Attributes:
        process: The number of this process.
        num_processes: How many there are.
        store: What they share.
        coordinator: `host:port` of process 0, as this process was told it.
        transport: How arrays get from one to another; None: as suits the devices.
        heartbeat: Says what ends the job; None where nobody watches.
    """

    process: int
    num_processes: int
    store: KeyValueStore
    coordinator: str
    transport: TransportName | None = None
    heartbeat: Heartbeat | None = None

    def exchange(self, topic: str, text: str, *, patience_s: float = PATIENCE_S) -> list[str]:
        """Give a text to all processes and return those of all, by number.

        Args:
            topic: What the processes are at, for messages: the same in all of them.
            text: The text of this process.
            patience_s: How long it waits for the others.

        Raises:
            ClusterError: a process does not come, or is at something else.
            TransportError: a process of the job is gone, or failed.
        """
        turn = self._turn()
        self._say(turn, topic, text)
        deadline = time.monotonic() + patience_s
        found = [
            text if other == self.process else self._heard(turn, other, topic, deadline)
            for other in range(self.num_processes)
        ]
        # All have come here, so all have read what was said before.
        self.store.key_value_delete(_key(turn - 1, self.process))
        return found

    def from_first(self, topic: str, make: Callable[[], str]) -> str:
        """Return a text that process 0 makes; the others wait for it as long as it takes.

        Args:
            topic: What the processes are at, for messages: the same in all of them.
            make: Makes the text; called in process 0 only.

        Raises:
            MeshwiseError: the error that `make` raised, in every process.
            ClusterError: process 0 is at something else.
            TransportError: a process of the job is gone, or failed.
        """
        turn = self._turn()
        if self.process:
            found = json.loads(self._heard(turn, 0, topic, None))
            if "error" in found:
                raise _error_of(found["error"], found["text"])
            return found["text"]
        try:
            text = make()
        except BaseException as error:
            self._say(turn, topic, json.dumps({"error": type(error).__name__, "text": str(error)}))
            raise
        self._say(turn, topic, json.dumps({"text": text}))
        return text

    def count(self, name: str) -> int:
        """Count what this process does, from 1 on; the count is kept where all else is."""
        return self.store.key_value_increment(f"{_ROOT}/count/{name}/{self.process}", 1)

    def publish(self, name: str, text: str) -> None:
        """Give other processes a text under a name that no process has used.

        Args:
            name: The name, the number of this process apart.
            text: The text.
        """
        self.store.key_value_set_bytes(f"{_ROOT}/text/{self.process}/{name}", text.encode())

    def withdraw(self, name: str) -> None:
        """Remove what this process gives under a name, and under all names below it.

        Args:
            name: The name, or its first parts.
        """
        self.store.key_value_delete(f"{_ROOT}/text/{self.process}/{name}")

    def published(self, name: str, process: int, *, patience_s: float = PATIENCE_S) -> str:
        """Return what a process gives under a name, when it does.

        Args:
            name: The name.
            process: The number of the process.
            patience_s: How long this process waits.

        Raises:
            TransportError: the other one gives nothing, or a process of the job is gone.
        """
        deadline = time.monotonic() + patience_s
        with self._waiting(name, process):
            found = self._value(f"{_ROOT}/text/{process}/{name}", process, deadline)
        if found is None:
            raise TransportError(
                f"process {self.process} waited {patience_s:.0f} s for {name} of process "
                f"{process}; see what that process does, or whether it still runs"
            )
        return found.decode()

    def _turn(self) -> int:
        """Count the turns of this process."""
        return self.count("turns")

    def _say(self, turn: int, topic: str, text: str) -> None:
        said = json.dumps({"topic": topic, "text": text}).encode()
        self.store.key_value_set_bytes(_key(turn, self.process), zlib.compress(said, 1))

    def _heard(self, turn: int, other: int, topic: str, deadline: float | None) -> str:
        """Return what another process says at a turn."""
        # What process 0 makes may take long.
        waiting = nullcontext() if deadline is None else self._waiting(topic, other)
        with waiting:
            said = self._value(_key(turn, other), other, deadline)
        if said is None and self._has_ended(other):
            raise TransportError(
                f"process {other} has ended, and process {self.process} waits for it at {topic}"
            )
        if said is None:
            raise ClusterError(
                f"process {other} of {self.num_processes} has not come to {topic}, where process "
                f"{self.process} waits for it; every process must make the same calls of Meshwise "
                "in the same order; or that process has failed"
            )
        found = json.loads(zlib.decompress(said))
        if found["topic"] != topic:
            raise ClusterError(
                f"the processes have come apart: process {self.process} is at {topic}, process "
                f"{other} is at {found['topic']}; every process must make the same calls of "
                "Meshwise in the same order"
            )
        return found["text"]

    @property
    def whereabouts(self) -> Whereabouts | None:
        """What this process is at; None where nobody asks."""
        return None if self.heartbeat is None else self.heartbeat.whereabouts

    def check(self) -> None:
        """Raise what ends the job.

        Raises:
            TransportError: a process of the job is gone, or failed.
        """
        if self.heartbeat is not None:
            self.heartbeat.check()

    def fail(self, error: BaseException) -> None:
        """Tell the other processes that this one fails: all end, where they would wait for it.

        Args:
            error: Why.
        """
        if self.heartbeat is not None:
            self.heartbeat.fail(error)

    def _waiting(self, what: str, process: int) -> AbstractContextManager[None]:
        if self.whereabouts is None:
            return nullcontext()
        return self.whereabouts.waiting(f"at {what}, waiting for process {process}")

    def _has_ended(self, process: int) -> bool:
        return self.heartbeat is not None and self.heartbeat.has_ended(process)

    def _value(self, key: str, process: int, deadline: float | None) -> bytes | None:
        """Return the value of a key when it has one; None where it gets none from a process."""
        is_last = False
        while True:
            self.check()
            left = _SLICE_S if deadline is None else deadline - time.monotonic()
            wait_ms = max(int(min(left, _SLICE_S) * 1000), 1)
            try:
                return self.store.blocking_key_value_get_bytes(key, wait_ms)
            except jax.errors.JaxRuntimeError as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    raise ClusterError(
                        f"process {self.process} cannot reach what the processes share: {error}"
                    ) from error
                if is_last or (deadline is not None and left <= _SLICE_S):
                    return None
                is_last = self._has_ended(process)


def current_job() -> Job | None:
    """Return the job of this process; None where it is alone.

    No backend of JAX is started; the heartbeat of the process begins with the first call.
    """
    state = job_state()
    if state is None or state.num_processes == 1:
        return None
    return Job(
        process=state.process,
        num_processes=state.num_processes,
        store=state.store,
        coordinator=state.coordinator,
        heartbeat=heartbeat_of(state.store, state.process),
    )


@contextmanager
def told_to_all(job: Job | None) -> Generator[None]:
    """Tell the other processes of a job what fails in a block, before anything waits for them.

    Args:
        job: The processes; None where this one is alone.
    """
    try:
        yield
    except BaseException as error:
        if job is not None:
            job.fail(error)
        raise


def text_of_processes(processes: Sequence[int]) -> str:
    """Return numbers of processes as text, as `process 1`, or `processes 1, 2`."""
    numbers = ", ".join(map(str, processes))
    return f"process {numbers}" if len(processes) == 1 else f"processes {numbers}"


def _key(turn: int, process: int) -> str:
    return f"{_ROOT}/turn/{turn}/{process}"


def _error_of(name: str, text: str) -> MeshwiseError:
    """Return an error of process 0 as the same error here, if it is one of ours."""
    kinds = {kind.__name__: kind for kind in _kinds(MeshwiseError)}
    told = f"{text} (in process 0)"
    if name in kinds:
        return kinds[name](told)
    return ClusterError(f"process 0 failed with {name}: {text}")


def _kinds(root: type[MeshwiseError]) -> list[type[MeshwiseError]]:
    return [root, *(kind for below in root.__subclasses__() for kind in _kinds(below))]
