"""Steps that are wrong: side effects, results, tracers, losses, stages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

import meshwise as mw
from bad_input.case import Case, X, plan, step
from meshwise.errors import LossError, PlanError, TraceError


def around(wrong: Callable[[Any], Any]) -> Any:
    """A step whose batch goes through something that is not allowed."""

    def with_wrong(state: Any, batch: Any) -> Any:
        changed = wrong(batch)
        return step(state, batch if changed is None else changed)

    return with_wrong


def looped(state: Any, batch: Any) -> Any:
    def body(carry: Any, _: Any) -> Any:
        jax.debug.print("{}", carry[0, 0], ordered=True)
        return carry * 2, None

    return step(state, jax.lax.scan(body, batch, None, length=2)[0])


def same_on_host(batch: Any) -> Any:
    return jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct(batch.shape, batch.dtype), batch)


def told(batch: Any) -> Any:
    return io_callback(lambda x: x, jax.ShapeDtypeStruct(batch.shape, batch.dtype), batch)


def differentiated(loss: Callable[[Any, Any], Any], **options: Any) -> Any:
    def descent(state: Any, batch: Any) -> Any:
        value, grads = mw.value_and_grad(lambda p: loss(p["w"], batch), **options)(state)
        return jax.tree.map(lambda p, g: p - g, state, grads), value

    return descent


def plain(state: Any, batch: Any) -> Any:
    loss, grads = jax.value_and_grad(lambda p: jnp.mean(batch @ p["w"]))(state)
    return jax.tree.map(lambda p, g: p - g, state, grads), loss


def plain_grad(state: Any, batch: Any) -> Any:
    def inner(state: Any) -> Any:
        return jax.jit(jax.grad(lambda p: jnp.mean(batch @ p["w"])))(state)

    return inner(state), None


def inside_jit() -> Any:
    def outer(shift: Any) -> Any:
        return plan(lambda state, batch: (state, jnp.sum(batch) + shift)) and shift

    return jax.jit(outer)(np.float32(1))


def leaked() -> Any:
    kept: list[Any] = []

    def keeps(state: Any, batch: Any) -> Any:
        kept.append(batch)
        return step(state, batch)

    plan(keeps)
    return plan(lambda state, batch: step(state, batch + kept[0]))


def yields(state: Any, batch: Any) -> Any:
    yield step(state, batch)


ARRAYS_ONLY = ", which is not an array; return arrays only, in any tree"
SCALAR = ", but a loss must be a real scalar; reduce it, for example with jnp.mean"
TRACED = "that is being traced elsewhere (by jax.jit, jax.grad, jax.vmap or an earlier trace"
INTS = {"w": np.ones((4, 4), np.int32)}

STEPS = (
    # functions of the host
    Case(
        "io callback with results",
        lambda: plan(around(told)),
        TraceError,
        "io_callback at steps.py:{line} (told) returns values to the step, which one call for all "
        "devices cannot; return nothing from it, or use jax.pure_callback if the function has no "
        "effect",
    ),
    Case(
        "pure callback in micro-batches",
        lambda: plan(around(same_on_host), num_microbatches=2),
        TraceError,
        "the step does not separate into micro-batches: pure_callback at steps.py:{line}",
    ),
    Case(
        "ordered print in a loop",
        lambda: plan(looped),
        TraceError,
        "a callback with ordered=True at steps.py:{line} (looped.body) is inside a loop or a "
        "branch, where it has no order with those outside; leave ordered out, or move it out of "
        "the loop or branch",
    ),
    # what a step returns
    Case(
        "returns a function",
        lambda: plan(lambda s, b: (s, step)),
        TraceError,
        "<lambda> returns <function step at 0x{any} (function) at result[1]" + ARRAYS_ONLY,
    ),
    Case(
        "returns a text",
        lambda: plan(lambda s, b: {"state": s, "name": "adam"}),
        TraceError,
        "<lambda> returns 'adam' (str) at result['name']" + ARRAYS_ONLY,
    ),
    Case(
        "is a generator",
        lambda: plan(yields),
        TraceError,
        "yields returns <generator object yields at 0x{any} (generator) at result" + ARRAYS_ONLY,
    ),
    Case(
        "returns nothing",
        lambda: plan(lambda s, b: None),
        TraceError,
        "<lambda> returns no array; a step must return its new state and what else is wanted, "
        "as (state, loss): arrays of JAX are not changed in place",
    ),
    Case(
        "returns an empty tree",
        lambda: plan(lambda s, b: ({}, ())),
        TraceError,
        "<lambda> returns no array; a step must return its new state",
    ),
    # tracers of others
    Case(
        "closed-over tracer",
        inside_jit,
        TraceError,
        "the step uses a value of type float32[] that it does not get as an argument and " + TRACED,
    ),
    Case(
        "leaked tracer",
        leaked,
        TraceError,
        "the step uses a value of type float32[8,4] that it does not get as an argument and "
        + TRACED,
    ),
    # the loss
    Case(
        "vector loss",
        lambda: plan(differentiated(lambda w, b: b @ w)),
        LossError,
        "<lambda> returns float32[8,4]" + SCALAR,
    ),
    Case(
        "complex loss",
        lambda: plan(differentiated(lambda w, b: jnp.sum(b @ w) * 1j)),
        LossError,
        "<lambda> returns complex64[]" + SCALAR,
    ),
    Case(
        "whole-number loss",
        lambda: plan(differentiated(lambda w, b: jnp.sum(b @ w).astype(int))),
        LossError,
        "<lambda> returns int32[]" + SCALAR,
    ),
    Case(
        "whole-number parameters",
        lambda: plan(differentiated(lambda w, b: jnp.sum(b @ w)), (INTS, X)),
        LossError,
        "<lambda> is differentiated with respect to int32[4,4], but only real and complex "
        "numbers have a gradient; keep whole numbers in another argument, or choose the others "
        "with argnums",
    ),
    # methods and meshes
    Case(
        "stages with jax.value_and_grad",
        lambda: plan(plain, method=mw.Megatron(dp=2, tp=1, pp=2)),
        TraceError,
        "Megatron(dp=2, tp=1, pp=2) asks for pipeline stages, but the step differentiates with "
        "JAX's own function at steps.py:{line} (plain): `loss, grads = "
        'jax.value_and_grad(lambda p: jnp.mean(batch @ p["w"]))(state)`; only '
        "mw.value_and_grad and mw.grad mark the loss so that it can be cut: write `loss, grads "
        '= mw.value_and_grad(lambda p: jnp.mean(batch @ p["w"]))(state)`, or use one stage',
    ),
    Case(
        "stages with jax.grad in a function",
        lambda: plan(plain_grad, method=mw.Megatron(dp=1, tp=2, pp=2)),
        TraceError,
        'write `return jax.jit(mw.grad(lambda p: jnp.mean(batch @ p["w"])))(state)`, or use',
    ),
    Case(
        "stages without a gradient",
        lambda: plan(method=mw.Megatron(dp=1, tp=1, pp=4)),
        TraceError,
        "asks for pipeline stages, but the step has no gradient that could be cut; "
        "differentiate the loss with mw.value_and_grad, or use one stage",
    ),
    Case(
        "stages of a method that has none",
        lambda: plan(
            differentiated(lambda w, b: jnp.mean(b @ w)), method=mw.Megatron(dp=2, tp=1, pp=2)
        ),
        PlanError,
        "Megatron(dp=2, tp=1, pp=2): of the methods only Auto runs in stages; use mw.Auto(stages",
    ),
)
