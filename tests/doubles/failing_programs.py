"""Programs of a step that fail when they run, for tests of failures."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import meshwise as mw


@contextmanager
def program_replaced(
    step: mw.ParallelStep, name: str, make: Callable[[Any], Callable[..., Any]]
) -> Iterator[None]:
    """Another function in place of one executable of a step that has run.

    Args:
        step: A pipeline.
        name: Of the program, as `backward of layer 1`.
        make: From the executable to what runs in its place.
    """
    executable: Any = step._last
    pipeline = executable.pipeline
    names = [program.name for program in pipeline.executables]
    at = names.index(name)
    other = replace(pipeline.executables[at], executable=make(pipeline.executables[at].run))
    programs = (*pipeline.executables[:at], other, *pipeline.executables[at + 1 :])
    with _in_place_of(step, replace(executable, pipeline=replace(pipeline, executables=programs))):
        yield


@contextmanager
def step_replaced(
    step: mw.ParallelStep, make: Callable[[Any], Callable[..., Any]]
) -> Iterator[None]:
    """Another function in place of the program of a step on one mesh that has run."""
    executable: Any = step._last
    with _in_place_of(step, replace(executable, compiled=make(executable.compiled))):
        yield


@contextmanager
def stacks_deleted_early(step: mw.ParallelStep) -> Iterator[None]:
    """A step that has run, as if there were no memory for stacks of the state beside layers."""
    executable: Any = step._last
    with _in_place_of(step, replace(executable, keeps_stacks=False)):
        yield


@contextmanager
def _in_place_of(step: mw.ParallelStep, other: Any) -> Iterator[None]:
    executable = step._last
    (shape,) = [key for key, found in step._recent.items() if found is executable]
    (place,) = [key for key, found in step._executables.items() if found is executable]
    step._recent[shape] = step._executables[place] = step._last = other
    try:
        yield
    finally:
        step._recent[shape] = step._executables[place] = step._last = executable


def raising(error: BaseException) -> Callable[[Any], Callable[..., Any]]:
    """It fails when it is dispatched."""

    def make(_: Any) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            raise error

        return run

    return make


def raising_after(error: BaseException) -> Callable[[Any], Callable[..., Any]]:
    """It does its work, overwrites what it is given, and then fails."""

    def make(executable: Any) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            executable(*args)
            raise error

        return run

    return make


def forget_failures() -> None:
    """Let programs without failures be the last with callbacks: JAX waits for these at exit."""
    for device in jax.devices():
        fine = jax.jit(lambda x: jax.pure_callback(lambda y: y, x, x))
        fine(jax.device_put(jnp.zeros(()), device))
    jax.effects_barrier()


def failing_later(message: str) -> Callable[[Any], Callable[..., Any]]:
    """It is dispatched well, and fails while it computes, as when memory runs out there."""
    begun: list[float] = []

    def fail(_: Any) -> Any:
        begun.append(time.monotonic())
        # Until what follows has been dispatched.
        time.sleep(max(begun[0] + 0.5 - time.monotonic(), 0))
        raise RuntimeError(message)

    def rest(_: Any) -> Any:
        time.sleep(0.3)
        return np.int32(0)

    @jax.jit
    def work(x: Any, turns: int) -> Any:
        return jax.lax.fori_loop(0, turns, lambda _, y: jnp.tanh(y + 1), x)

    @jax.jit
    def rested(x: Any) -> Any:
        return jax.pure_callback(rest, jax.ShapeDtypeStruct((), jnp.int32), x)

    @jax.jit
    def poisoned(x: Any, y: Any) -> Any:
        zero = jax.pure_callback(fail, jax.ShapeDtypeStruct((), jnp.int32), y)
        return x + zero.astype(x.dtype)

    def make(executable: Any) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            found = executable(*args)
            ones = jax.device_put(jnp.ones((200, 200)), found[0].sharding)
            rest_after = rested.lower(ones).compile()
            programs = [poisoned.lower(x, rest_after(ones)).compile() for x in found]
            # XLA:CPU runs at once what does not wait for anything: then it fails at once, and
            # what it waits for takes longer the next time.
            for turns in (500, 5_000, 50_000, 500_000):
                begun.clear()
                # The rest is dispatched while the work is on, and all else during the rest.
                busy = rest_after(work(ones, turns))
                try:
                    return [program(x, busy) for program, x in zip(programs, found, strict=True)]
                except jax.errors.JaxRuntimeError as error:
                    at_once = error
            raise AssertionError("it failed when it was dispatched") from at_once

        return run

    return make
