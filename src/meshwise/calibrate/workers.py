"""Processes that compile programs side by side, and then time them one after the other."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from threading import Timer
from typing import NamedTuple, Self

import jax
import numpy as np

from meshwise.calibrate.layer_clock import ProgramClock
from meshwise.calibrate.timed_program import Exported, Measurable
from meshwise.errors import MeshwiseError, ProgramError
from meshwise.system.child_process import ChildProcess, requests

_SCRIPT = "from meshwise.calibrate.workers import serve; serve()"
# A program that takes longer to compile or to run is not measured.
_LONGEST_S = 600.0


class Setup(NamedTuple):
    """What a process must know before it touches a device.

    Attributes:
        platform: Platform of the devices.
        num_devices: Devices of the asking process.
        enable_x64: Whether the asking process computes in 64 bits.
    """

    platform: str
    num_devices: int
    enable_x64: bool


class Prepare(NamedTuple):
    """Compile a program; answered by None, or by what went wrong."""

    key: str
    exported: Exported


class Time(NamedTuple):
    """Time a program that is compiled; answered by seconds, or by what went wrong."""

    key: str


class Workers:
    """The processes; none is left when the block ends.

    No process times anything while another compiles: they share the cores of the host.
    """

    def __init__(self, count: int | None = None) -> None:
        """Nothing is started yet.

        Args:
            count: How many; None: half of the cores, at least two; one where the devices are no
                CPU's, which two processes cannot both have.
        """
        device = jax.devices()[0]
        most = max((os.cpu_count() or 2) // 2, 2) if device.platform == "cpu" else 1
        self._count = count or most
        self._setup = Setup(device.platform, len(jax.devices()), _has_x64())
        self._children: list[ChildProcess] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Nothing more to do."""
        return self

    def __exit__(self, *error: object) -> None:
        """End the processes."""
        self._stack.close()
        self._children.clear()

    def __call__(self, programs: Sequence[Measurable]) -> list[float]:
        """Return seconds of programs.

        Raises:
            ProgramError: one cannot be compiled, or a process ended.
        """
        self._start(min(self._count, len(programs)))
        # Long ones first, as far as their size tells.
        asked = [(p, p.export()) for p in programs]
        asked.sort(key=lambda x: -len(x[1].program.mlir_module_serialized))
        given = [asked[n :: len(self._children)] for n in range(len(self._children))]
        for child, mine in zip(self._children, given, strict=False):
            for program, exported in mine:
                _send(child, Prepare(program.key, exported), program)
        for child, mine in zip(self._children, given, strict=False):
            for program, _ in mine:
                problem = _received(child, program.name)
                if problem is not None:
                    raise ProgramError(f"{program.name} cannot be measured: {problem}")
        found: dict[str, float] = {}
        for child, mine in zip(self._children, given, strict=False):
            for program, _ in mine:
                _send(child, Time(program.key), program)
                seconds = _received(child, program.name)
                if not isinstance(seconds, float):
                    raise ProgramError(f"{program.name} cannot be measured: {seconds}")
                found[program.key] = seconds
        return [found[p.key] for p in programs]

    def _start(self, count: int) -> None:
        while len(self._children) < count:
            try:
                child = self._stack.enter_context(ChildProcess(_SCRIPT))
                child.send(self._setup)
            except OSError as error:
                raise ProgramError(f"a process that measures cannot be started: {error}") from error
            self._children.append(child)


def _has_x64() -> bool:
    return jax.dtypes.canonicalize_dtype(np.float64) == np.float64


def _send(child: ChildProcess, request: object, program: Measurable) -> None:
    try:
        child.send(request)
    except (OSError, pickle.PicklingError) as error:
        raise ProgramError(f"the process that measures {program.name} ended: {error}") from error


def _received(child: ChildProcess, name: str) -> object:
    watchdog = Timer(_LONGEST_S, child.kill)
    watchdog.daemon = True
    watchdog.start()
    try:
        return child.receive()
    except (OSError, EOFError) as error:
        raise ProgramError(
            f"the process that measures {name} ended, or took longer than {_LONGEST_S:.0f} s"
        ) from error
    finally:
        watchdog.cancel()


def serve() -> None:
    """Answer requests until nobody asks any more."""
    clock = ProgramClock()
    for request, answer in requests():
        match request:
            case Setup():
                jax.config.update("jax_platforms", request.platform)
                jax.config.update("jax_enable_x64", request.enable_x64)
                if request.platform == "cpu":
                    jax.config.update("jax_num_cpu_devices", request.num_devices)
                else:
                    # The asking process holds memory of the same devices.
                    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
            case Prepare():
                answer(_outcome(partial(clock.prepare, request.key, request.exported)))
            case _:
                answer(_outcome(partial(clock.seconds, request.key)))


def _outcome(work: Callable[[], object]) -> object:
    """Return what work gives, or the text of what went wrong."""
    try:
        return work()
    except (MeshwiseError, jax.errors.JaxRuntimeError, TypeError, ValueError) as error:
        return str(error)
