"""The heartbeat of a process in a job: all end soon where one has died, stands still or failed.

JAX by itself waits for minutes, or for ever, for a process that is gone.  Each process tells the
store of the job twice a second that it lives and what it is at.  Process 0 watches all others, and
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
from contextlib import suppress
from functools import partial
from types import TracebackType

import jax

from meshwise.errors import ClusterError, TransportError
from meshwise.jax_compat.jobs import KeyValueStore, job_state
from meshwise.runtime.job.beats import (
    BEAT_S,
    LEAST_SILENT_S,
    LOST_S,
    SILENT_S,
    Beat,
    BeatState,
    Fault,
    Observer,
)
from meshwise.runtime.job.failures import exit_code_of, failure_text, may_be_of_another
from meshwise.runtime.job.spare_threads import SpareThreads
from meshwise.runtime.job.whereabouts import Whereabouts
from meshwise.system.cause_file import write_cause
from meshwise.system.exit_codes import START_AGAIN

# The environment variable with another limit of silence, in seconds.
SILENCE = "MESHWISE_SILENCE_S"
_ROOT = "meshwise"
_FAULT = f"{_ROOT}/fault"
_NAME = "meshwise-heartbeat"
# How long a process goes on when the cause is known: one that is the cause, another one, and
# process 0, which keeps the store from which the others learn it.
_CAUSE_GRACE_S = 2.0
_GRACE_S = 3.0
_STORE_GRACE_S = 5.0
_LOOK_S = 0.25
# A process that did not look for so long stood still itself.
_STOOD_STILL_S = 2.5
# How long the store may take to note a cause; it may be what is gone.
_SHARE_S = 1.0
# How long the end of the process waits for the last beat.
_JOIN_S = 3.0
_OVER = f"{_ROOT}/over"


class Heartbeat:
    """The heartbeat of this process.

    Attributes:
        fault: What ends the job; None as long as all is well.
        whereabouts: What this process is at.
    """

    def __init__(self, store: KeyValueStore, process: int) -> None:
        """Nothing beats yet.

        Args:
            store: What the processes share.
            process: The number of this process.
        """
        self.fault: Fault | None = None
        self.whereabouts = Whereabouts()
        self._store, self._process = store, process
        self._observer = Observer(process)
        self._state: BeatState = "runs"
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._heard_s = time.monotonic()
        self._number = 0
        self._silent_s = silence_limit_s()
        self._pid = os.getpid()
        self._is_leaving = False
        self._exit_code = 0
        self._beater = threading.Thread(target=self._beat_on, name=_NAME, daemon=True)
        # For telling a cause, ending the process, and its output; each may hang.
        self._spare = SpareThreads(3)

    def start(self) -> None:
        """Begin to beat, until the job is left."""
        self._beater.heartbeat = self  # type: ignore[attr-defined]
        with suppress(jax.errors.JaxRuntimeError):
            self._beat()
        self._beater.start()
        threading.Thread(target=self._look_on, name=f"{_NAME}-watch", daemon=True).start()
        # After JAX's, so before it: at the end JAX waits for all others.
        atexit.register(self._leave)
        self._hear_of_exceptions()

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
        if self._is_leaving or self._stop.is_set():
            return
        self._is_leaving = True
        is_own = not may_be_of_another(error)
        if not is_own:
            if self._silent_s == SILENT_S:
                self._silent_s = LOST_S
            self._await_fault(LOST_S + 4 * BEAT_S)
            is_own = self.fault is None
        if is_own:
            self._found(Fault(process=self._process, text=failure_text(error, self._process)))
        self._exit_code = exit_code_of(error) if is_own else START_AGAIN
        self._spare.run(partial(self._exit_later, is_own), limit_s=0.0)

    def _exit_later(self, is_own: bool) -> None:
        grace_s = _CAUSE_GRACE_S if is_own else _GRACE_S
        time.sleep(_STORE_GRACE_S if self._process == 0 else grace_s)
        # What nobody reads would be waited for.
        self._spare.run(_flush, limit_s=1.0)
        os._exit(self._exit_code)

    def _hear_of_exceptions(self) -> None:
        """Tell of an exception that ends the program, before Python waits for threads."""
        before = sys.excepthook

        def hook(
            kind: type[BaseException], error: BaseException, trace: TracebackType | None
        ) -> None:
            before(kind, error, trace)
            # A session goes on after it.
            if not (sys.flags.interactive or hasattr(sys, "ps1")):
                self.fail(error)

        sys.excepthook = hook

    def _text(self, fault: Fault) -> str:
        here = self.whereabouts.text()
        return f"{fault.text}{f'; process {self._process} was {here}' if here else ''}"

    def _found(self, fault: Fault) -> None:
        """Keep the first cause, in the store, if that answers, and here."""
        first = [fault]

        def share() -> None:
            with suppress(jax.errors.JaxRuntimeError):  # Another process was first.
                self._store.key_value_set_bytes(_FAULT, fault.to_bytes())
            told = self._value(_FAULT)
            if told is not None:
                first.append(Fault.from_bytes(told))

        # Where process 0 is gone, so is the store.
        if fault.process or not self._process:
            self._spare.run(share, limit_s=_SHARE_S)
        with self._lock:
            if self.fault is None:
                self.fault = first[-1]
                write_cause(self.fault.process, self.fault.text)
                if not self._is_leaving or self.fault.process != self._process:
                    _say(self._text(self.fault))

    def _await_fault(self, limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        while self.fault is None and time.monotonic() < deadline:
            time.sleep(_LOOK_S / 2)

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
            place=self.whereabouts.text(),
            waits_s=self.whereabouts.waited_s(),
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
            if now_s - last_s > _STOOD_STILL_S:
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
                text=f"process {self._process} has not reached process 0 for "
                f"{now_s - self._heard_s:.0f} s, which keeps what the processes share; start the "
                "job again from its last checkpoint",
            )
        if fault is not None:
            self._found(fault)

    def _end(self) -> None:
        """End this process, if it does not end by itself."""
        if self._is_leaving:  # It ends already.
            return
        self._is_leaving = True
        self._exit_code = START_AGAIN
        self._exit_later(is_own=False)

    def _leave(self) -> None:
        """Tell the others that this process ends, and wait for them, as JAX then does."""
        if os.getpid() != self._pid or self._stop.is_set():
            return
        if not self._is_leaving:
            self.whereabouts.clear()
            self._state = "ended"
            while not self._stop.is_set() and self.fault is None and not self._are_all_over():
                time.sleep(BEAT_S)
        if self.fault is not None:
            # The exit comes before; JAX would wait for those that are gone.
            time.sleep(_STORE_GRACE_S + 2 * BEAT_S)
        self._stop.set()
        self._beater.join(_JOIN_S)

    def _are_all_over(self) -> bool:
        """Return whether all processes that have given signs of life have ended."""
        if self._process:
            return self._value(_OVER) is not None
        try:
            found = self._store.key_value_dir_get_bytes(f"{_ROOT}/beat/")
        except jax.errors.JaxRuntimeError:
            return False
        beats = [Beat.from_bytes(text) for _, text in found]
        if not beats or any(beat.state != "ended" for beat in beats):
            return False
        with suppress(jax.errors.JaxRuntimeError):
            self._store.key_value_set_bytes(_OVER, b"", allow_overwrite=True)
        return True


def heartbeat_of(store: KeyValueStore, process: int) -> Heartbeat:
    """Return the heartbeat of this process, which begins with the first call.

    Args:
        store: What the processes of the job share.
        process: The number of this process.
    """
    found = next((beat for beat in _running() if beat._store is store), None)
    if found is None:
        found = Heartbeat(store, process)
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
    if not LEAST_SILENT_S <= found < math.inf:
        raise ClusterError(
            f"{SILENCE} is {told!r}; give a number of seconds, {LEAST_SILENT_S:g} or more"
        )
    return found


def tell_exit(code: object) -> None:
    """Tell the other processes, if there are any, that this one ends by `sys.exit` with a failure.

    Args:
        code: What `sys.exit` was called with.
    """
    if code not in (None, 0):
        for found in _running():
            found.fail(SystemExit(code))


def _running() -> list[Heartbeat]:
    """Return the heartbeats of this process; more than one where a job was left for another."""
    beats = [getattr(thread, "heartbeat", None) for thread in threading.enumerate()]
    return [found for found in beats if isinstance(found, Heartbeat)]


def _say(text: str) -> None:
    with suppress(OSError, ValueError):
        sys.stderr.write(f"meshwise: {text}\n")
        sys.stderr.flush()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
