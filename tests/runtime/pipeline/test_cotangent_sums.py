"""Layers of one mesh that read one activation of another mesh send one cotangent: their sum."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwise as mw
from doubles.few import few_rows
from doubles.layered_steps import assert_equal, assert_replicas_are_equal, host, layering
from doubles.planned_stages import StageShape, planned_stages
from meshwise.program.names import Activation, Cotangent, CotangentTerm, Name
from meshwise.runtime.pipeline.interpreter import Pipeline
from meshwise.runtime.pipeline.make_pipeline import make_pipeline
from meshwise.runtime.pipeline.traffic import bytes_between
from meshwise.schedules.registry import make_schedule
from oracle.problem import quick_jit

pytestmark = pytest.mark.usefixtures("quick_steps", "x64")

COUNT, WIDTH, ROWS, MICROBATCHES = 8, 8, 16, 4


def loss(weights: Any, rows: Any) -> Any:
    """All layers after the first read its activation, each in its own way."""
    first = x = jnp.tanh(rows @ weights[0])
    for n, weight in enumerate(weights[1:]):
        x = jnp.tanh(x @ weight + (n + 1) * (first if n % 2 else jnp.sin(first)))
    return jnp.mean(x**2)


def step(weights: Any, rows: Any) -> Any:
    value, grads = mw.value_and_grad(loss)(weights, rows)
    return [w - 0.1 * g for w, g in zip(weights, grads, strict=True)], value


def arguments() -> tuple[list[jax.Array], jax.Array]:
    draw = np.random.default_rng(0).normal
    weights = [jnp.asarray(draw(size=(WIDTH, WIDTH))) / 3 for _ in range(COUNT)]
    return weights, jnp.asarray(draw(size=(ROWS, WIDTH)))


ONE: StageShape = (0, 0, (1, 1), "none")
CASES: list[tuple[str, list[StageShape]]] = [
    ("1f1b", [ONE, (1, 7, (1, 1), "none")]),
    ("1f1b", [(0, 0, (2, 1), "none"), (1, 4, (1, 2), "full"), (5, 7, (2, 2), "none")]),
    ("eager-1f1b", [(0, 2, (1, 2), "none"), (3, 7, (2, 1), "full")]),
    ("gpipe", [(0, 0, (2, 1), "none"), (1, 7, (2, 2), "none")]),
    ("zero-bubble-h1", [(0, 1, (1, 2), "none"), (2, 7, (2, 1), "none")]),
    ("interleaved-1f1b", [(n, n + 1, (1, 2), "none") for n in range(0, 8, 2)]),
    ("zb-v", [(n, n + 1, (2, 1), "none") for n in range(0, 8, 2)]),
]


@pytest.mark.parametrize(("name", "shapes"), few_rows(CASES, [*CASES[:2], *CASES[4:6]]))
def test_sums_are_sent_once_and_the_gradients_are_those_of_one_device(
    name: str, shapes: list[StageShape]
) -> None:
    args = arguments()
    layers = layering(step, args, COUNT)
    expected = jax.tree.map(host, jax.tree.leaves(quick_jit(step)(*args)))
    num_meshes = 2 if len(shapes) == 4 else len(shapes)
    schedule = make_schedule(
        name, num_stages=len(shapes), num_microbatches=MICROBATCHES, num_meshes=num_meshes
    )
    choices = planned_stages(layers, MICROBATCHES, shapes)
    meshes = [choices[schedule.mesh_of_stage.index(m)] for m in range(schedule.num_meshes)]
    choices = [
        replace(choice, devices=meshes[m].devices)
        for choice, m in zip(choices, schedule.mesh_of_stage, strict=True)
    ]
    pipeline = make_pipeline(layers, choices, schedule)
    found = pipeline.run(jax.tree.leaves(args))
    assert_equal(found, expected)
    for array in found:
        assert_replicas_are_equal(array)
    assert any(isinstance(n.value, Cotangent) for n in taken_by_backward_passes(pipeline))
    assert set(sent_back(pipeline).values()) == {1}
    if len(shapes) == 2:
        both_ways = 2 * layers.crossing_bytes(shapes[0][1])
        assert bytes_between(pipeline) == both_ways + found[-1].nbytes


def taken_by_backward_passes(pipeline: Pipeline) -> list[Name]:
    return [n for layer in pipeline.compiled for n in layer.parts.backward.inputs]


def sent_back(pipeline: Pipeline) -> Counter[tuple[Activation, int]]:
    """How many cotangents of an activation come from each mesh but that of its maker."""
    mesh_of = [pipeline.schedule.mesh_of_stage[layer.stage] for layer in pipeline.compiled]
    return Counter(
        (n.value.activation, mesh_of[n.value.reader])
        for layer in pipeline.compiled
        for n in {n for part in layer.parts.passes for n in part.inputs}
        if isinstance(n.value, CotangentTerm) and mesh_of[n.value.reader] != mesh_of[layer.layer]
    )
