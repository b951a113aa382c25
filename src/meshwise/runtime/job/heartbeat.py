"""The heartbeat of a process in a job: all end soon where one has died, stands still or failed.

JAX by itself waits for minutes, or for ever, for a process that is gone.  Each process tells the
store of the job every second that it lives and what it is at.  Process 0 watches all others, and
they watch process 0, which keeps the store; JAX aborts them at once where it dies.  The first cause
that a process finds is kept in the store, and all end with it: waits of Python raise it, and where
nothing in this process can be interrupted, it ends by itself after some seconds.
"""

from __future__ import annotations

import atexit
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import NamedTuple

import jax

from meshwise.errors import ClusterError, TransportError
from meshwise.jax_compat import KeyValueStore, job_state
from meshwise.runtime.job.beats import BEAT_S, LOST_S, SILENT_S, Beat, BeatState, Fault, Observer
from meshwise.system.cause_file import write_cause
from meshwise.system.exit_codes import START_AGAIN

# The environment variable with another limit of silence, in seconds.
SILENCE = "MESHWISE_SILENCE_S"
_ROOT = "meshwise"
_FAULT = f"{_ROOT}/fault"
_NAME = "meshwise-heartbeat"
# What Python needs to end a process that can be interrupted.
_GRACE_S = 3.0
_LOOK_S = 0.5
# How long the store may take to note a cause; it may be what is gone.
_SHARE_S = 1.0
# How long the end of the process waits for the last beat.
_JOIN_S = 3.0
# What a transport waits for, and for how many seconds; None where it waits for nothing.
Wait = Callable[[], tuple[str, float] | None]


class _Place(NamedTuple):
    """What a process is at, and since when; its text is made when it is asked for."""

    what: object
    since_s: float


class Heartbeat:
    """The heartbeat of this process.

    Attributes:
        fault: What ends the job; None as long as all is well.
    """

    def __init__(self, store: KeyValueStore, process: int, num_processes: int) -> None:
        """Nothing beats yet.

        Args:
            store: What the processes share.
            process: The number of this process.
            num_processes: How many there are.
        """
        self.fault: Fault | None = None
        self._store, self._process, self._num_processes = store, process, num_processes
        self._observer = Observer(process)
        self._place: _Place | None = None
        self._waits: list[Wait] = []
        self._state: BeatState = "runs"
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._heard_s = time.monotonic()
        self._number = 0
        self._silent_s = silence_limit_s()
        self._pid = os.getpid()
        self._is_leaving = False
        self._beater = threading.Thread(target=self._beat_on, name=_NAME, daemon=True)

    def start(self) -> None:
        """Begin to beat, until the job is left."""
        self._beater.heartbeat = self  # type: ignore[attr-defined]
        self._beater.start()
        threading.Thread(target=self._look_on, name=f"{_NAME}-watch", daemon=True).start()
        # After JAX's, so before it: at the end JAX waits for all others.
        atexit.register(self._leave)

    def at(self, what: object) -> None:
        """Note what this process is at, in a step or in a wait for others.

        Args:
            what: Its `str` is the text, as "in step 3, instruction 5 of mesh 1"; None outside.
        """
        self._place = None if what is None else _Place(what, time.monotonic())

    @contextmanager
    def waiting(self, what: object) -> Generator[None]:
        """Note what this process waits for, as long as a block runs.

        Args:
            what: As for `at`.
        """
        before = self._place
        self.at(what)
        try:
            yield
        finally:
            self._place = before

    def watch(self, wait: Wait) -> None:
        """Ask also for what is waited for behind the calls of Python.

        Args:
            wait: Says what it is; it is kept.
        """
        self._waits.append(wait)

    def check(self) -> None:
        """Raise what ends the job.

        Raises:
            TransportError: there is such a thing.
        """
        if self.fault is not None:
            raise TransportError(self._text(self.fault))

    def has_ended(self, process: int) -> bool:
        """Return whether a process came to its end."""
        beat = self._beat_of(process)
        return beat is not None and beat.state == "ended"

    def fail(self, error: BaseException) -> None:
        """Tell all others that this process fails, and end it where it does not end by itself.

        Args:
            error: Why.
        """
        if self._is_leaving:
            return
        self._is_leaving = True
        is_own = self.fault is None
        if is_own and _may_be_of_another(error):
            self._silent_s = LOST_S
            self._await_fault(LOST_S + 2 * BEAT_S)
            is_own = self.fault is None
        if is_own:
            text = str(error).split("\n", 1)[0]
            name = type(error).__name__
            self._found(
                Fault(process=self._process, text=f"process {self._process} failed: {name}: {text}")
            )
        code = 1 if is_own else START_AGAIN
        threading.Thread(target=_exit_later, args=(code,), daemon=True).start()

    def _text(self, fault: Fault) -> str:
        here = self._place_text()
        where = f"; process {self._process} was {here}" if here else ""
        return f"{fault.text}{where}; start the job again from its last checkpoint"

    def _place_text(self) -> str:
        place = self._place
        parts = [] if place is None else [str(place.what)]
        parts += [f"waiting for {found[0]}" for wait in self._waits if (found := wait())]
        return ", ".join(parts)

    def _waited_s(self) -> float:
        place = self._place
        times = [0.0 if place is None else time.monotonic() - place.since_s]
        times += [found[1] for wait in self._waits if (found := wait())]
        return max(times)

    def _found(self, fault: Fault) -> None:
        """Keep the first cause, in the store, if that answers, and here."""
        first = [fault]

        def share() -> None:
            with suppress(jax.errors.JaxRuntimeError):  # Another process was first.
                self._store.key_value_set_bytes(_FAULT, fault.to_bytes())
            told = self._value(_FAULT)
            if told is not None:
                first.append(Fault.from_bytes(told))

        sharing = threading.Thread(target=share, daemon=True)
        sharing.start()
        sharing.join(_SHARE_S)
        with self._lock:
            if self.fault is None:
                self.fault = first[-1]
                write_cause(self.fault.process, self.fault.text)
                if self.fault.process != self._process:
                    _say(self._text(self.fault))

    def _await_fault(self, limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        while self.fault is None and time.monotonic() < deadline:
            time.sleep(_LOOK_S / 5)

    def _beat_on(self) -> None:
        """Beat, and hear the others, until this process has left the job."""
        while not self._stop.wait(BEAT_S):
            state = job_state()
            if state is None or state.store is not self._store:
                self._stop.set()
                return
            with suppress(jax.errors.JaxRuntimeError):
                self._beat()
                self._hear()
                self._heard_s = time.monotonic()

    def _beat(self) -> None:
        self._number += 1
        beat = Beat(
            number=self._number,
            state=self._state,
            place=self._place_text(),
            waits_s=self._waited_s(),
        )
        key = f"{_ROOT}/beat/{self._process}"
        self._store.key_value_set_bytes(key, beat.to_bytes(), allow_overwrite=True)

    def _hear(self) -> None:
        told = self._value(_FAULT)
        if told is not None and self.fault is None:
            self._found(Fault.from_bytes(told))
        if self._process:
            beat = self._beat_of(0)
            beats = {} if beat is None else {0: beat}
        else:
            found = self._store.key_value_dir_get_bytes(f"{_ROOT}/beat/")
            beats = {int(key.rpartition("/")[2]): Beat.from_bytes(text) for key, text in found}
        self._observer.see(beats, time.monotonic())
        if not self._process:
            for text in self._observer.slow():
                _say(text)

    def _beat_of(self, process: int) -> Beat | None:
        told = self._value(f"{_ROOT}/beat/{process}")
        return None if told is None else Beat.from_bytes(told)

    def _value(self, key: str) -> bytes | None:
        try:
            return self._store.key_value_try_get_bytes(key)
        except jax.errors.JaxRuntimeError:
            return None

    def _look_on(self) -> None:
        """Watch, also where the other thread waits for the store, and end the process."""
        last_s = time.monotonic()
        while not self._stop.wait(_LOOK_S):
            now_s = time.monotonic()
            if now_s - last_s > _LOOK_S + 2 * BEAT_S:
                self._observer.wake(now_s)
                self._heard_s = max(self._heard_s, now_s)
            last_s = now_s
            if self.fault is None:
                self._look(now_s)
            if self.fault is not None:
                self._end()
                return

    def _look(self, now_s: float) -> None:
        fault = self._observer.fault(now_s, silent_s=self._silent_s)
        if fault is None and now_s - self._heard_s > max(self._silent_s, SILENT_S):
            fault = Fault(
                process=0,
                text=f"process {self._process} cannot reach process 0, which keeps what the "
                f"processes share, for {now_s - self._heard_s:.0f} s",
            )
        if fault is not None:
            self._found(fault)

    def _end(self) -> None:
        """End this process, if it does not end by itself."""
        if self._is_leaving:  # It ends already.
            return
        time.sleep(_GRACE_S)
        if not self._stop.is_set():
            _exit(START_AGAIN)

    def _leave(self) -> None:
        """Tell the others that this process ends, and wait for them, as JAX then does."""
        if os.getpid() != self._pid or self._stop.is_set():
            return
        error = getattr(sys, "last_value", None)
        if isinstance(error, BaseException):
            self.fail(error)
        elif not self._is_leaving:
            self._place = None
            self._state = "ended"
            while not self._stop.is_set() and not self._are_all_over():
                time.sleep(_LOOK_S / 5)
        self._stop.set()
        self._beater.join(_JOIN_S)

    def _are_all_over(self) -> bool:
        """Return whether all processes that have given signs of life have ended."""
        try:
            found = self._store.key_value_dir_get_bytes(f"{_ROOT}/beat/")
        except jax.errors.JaxRuntimeError:
            return False
        beats = [Beat.from_bytes(text) for _, text in found]
        return bool(beats) and all(beat.state == "ended" for beat in beats)


def heartbeat_of(store: KeyValueStore, process: int, num_processes: int) -> Heartbeat:
    """Return the heartbeat of this process, which begins with the first call.

    Args:
        store: What the processes of the job share.
        process: The number of this process.
        num_processes: How many there are.
    """
    for thread in threading.enumerate():
        found = getattr(thread, "heartbeat", None)
        if isinstance(found, Heartbeat) and found._store is store:
            return found
    found = Heartbeat(store, process, num_processes)
    found.start()
    return found


def silence_limit_s() -> float:
    """Return after how many seconds without a beat a process is gone.

    Raises:
        ClusterError: the environment says no number of seconds.
    """
    told = os.environ.get(SILENCE)
    if told is None:
        return SILENT_S
    try:
        found = float(told)
    except ValueError:
        found = math.nan
    if not 3 * BEAT_S <= found < math.inf:
        raise ClusterError(
            f"{SILENCE} is {told!r}; give a number of seconds, {3 * BEAT_S:g} or more"
        )
    return found


def _may_be_of_another(error: BaseException | None) -> bool:
    """Return whether an error may say that another process has died."""
    kinds = (jax.errors.JaxRuntimeError, TransportError)
    while error is not None and not isinstance(error, kinds):
        error = error.__cause__ or error.__context__
    return error is not None


def _say(text: str) -> None:
    with suppress(OSError, ValueError):
        sys.stderr.write(f"meshwise: {text}\n")
        sys.stderr.flush()


def _exit_later(code: int) -> None:
    time.sleep(_GRACE_S + 2)
    _exit(code)


def _exit(code: int) -> None:
    # What nobody reads would be waited for.
    flush = threading.Thread(target=_flush, daemon=True)
    flush.start()
    flush.join(1.0)
    os._exit(code)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
