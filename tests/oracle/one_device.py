"""A traced step, micro-batches included, run on one device without any mesh."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

import meshwise as mw
from meshwise.trace.program import Program
from meshwise.trace.step import StepSignature, TracedStep, open_step, trace_step
from meshwise.trace.time.analyze import is_heavy
from oracle.every_strategy import evaluate
from oracle.problem import run_once

SIGNATURE = StepSignature(batch_argnums=(1,), batch_dims=0, donate_argnums="auto")


def traced(step: Callable[..., Any], *args: Any, b: int, **more: Any) -> TracedStep:
    """Trace `step(state, batch)` with `b` micro-batches for 4 devices."""
    signature = more.pop("signature", SIGNATURE)
    options = {"num_devices": 4, **more}
    return trace_step(open_step(step, args, {}, signature), num_microbatches=b, **options)


def run_traced(step: TracedStep, *args: Any) -> Any:
    """Results of a traced step."""
    leaves = jax.tree.leaves((args, {}))

    def outputs(leaves: Sequence[Any]) -> list[Any]:
        values = evaluate(step.program, leaves)
        return [values[i] for i in step.program.outputs]

    return jax.tree.unflatten(step.out_tree, run_once(outputs, leaves))


def heavy_outside_the_loop(program: Program, b: int) -> list[str]:
    """Dense products that do not run once for each micro-batch."""
    return [
        node.name
        for node in program.nodes
        if is_heavy(node) and not (node.name == "scan" and node.equation.params["length"] == b)
    ]


def descent(loss: Callable[..., Any]) -> Callable[..., Any]:
    """`(params, batch) -> (params, out)` for a loss, or for a loss with auxiliary results."""

    def step(params: Any, batch: Any) -> Any:
        (value, aux), grads = mw.value_and_grad(_with_aux(loss), has_aux=True)(params, batch)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), (value, aux)

    return step


def _with_aux(loss: Callable[..., Any]) -> Callable[..., Any]:
    def with_aux(*args: Any) -> Any:
        out = loss(*args)
        return out if isinstance(out, tuple) else (out, None)

    return with_aux
