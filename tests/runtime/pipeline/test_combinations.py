"""Pipelines of every kind are the step: the oracle is JAX on one device, over two steps (I1)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from doubles.layered_steps import SIGNATURE, assert_replicas_are_equal, host
from doubles.pipeline_cases import MODELS, NUM_CASES, PipelineCase, pipeline_case
from doubles.planned_stages import planned_stages
from meshwise.pipeline_planning import layers_of
from meshwise.runtime.pipeline.build import StageChoice
from meshwise.runtime.pipeline.pipeline import make_pipeline
from meshwise.runtime.pipeline.stacked_ends import StackedEnds
from meshwise.trace.layers.layering import Layering
from one_device import run_traced, traced
from oracle.tolerances import FP16_LOSS, X64

pytestmark = pytest.mark.usefixtures("quick_steps")

CHEAP = (6,)


def choices_of(layers: Layering, case: PipelineCase) -> list[StageChoice]:
    """Stages of one mesh have its devices."""
    count, num_meshes = case.schedule.num_microbatches, case.schedule.num_meshes
    found: list[StageChoice] = []
    for first in range(0, len(case.stages), num_meshes):
        more = planned_stages(layers, count, case.stages[first : first + num_meshes])
        devices = [choice.devices for choice in found[:num_meshes] or more]
        found += [replace(c, devices=there) for c, there in zip(more, devices, strict=True)]
    return found


def on_one_device(case: PipelineCase, step: Any, args: Any) -> list[Any]:
    """Results of two steps."""
    count = case.schedule.num_microbatches
    state, batch = args
    found: list[Any] = []
    for _ in range(2):
        if case.model == "wide-resnet":
            local = traced(step, state, batch, b=count, num_devices=1, statistics="local")
            out = run_traced(local, state, batch)
        else:
            out = jax.jit(step)(state, batch)
        found.append(jax.tree.map(host, jax.tree.leaves(out)))
        state = out[0]
    return found


def in_stages(case: PipelineCase, step: Any, args: Any) -> list[Any]:
    """The same of a pipeline."""
    statistics = "local" if case.model == "wide-resnet" else "exact"
    layers, _ = layers_of(step, args, {}, SIGNATURE, case.num_layers, statistics=statistics)
    assert len(layers.ranges) == case.num_layers
    pipeline = make_pipeline(layers, choices_of(layers, case), case.schedule)
    assert layers.ends is not None
    ends = StackedEnds(layers.ends, [None] * len(layers.split.in_avals))
    state, batch = args
    tree = jax.tree.structure(jax.eval_shape(step, state, batch))
    found: list[Any] = []
    for _ in range(2):
        made = ends.results(pipeline.run(ends.arguments(jax.tree.leaves((state, batch)))))
        for array in made:
            assert_replicas_are_equal(array)
        found.append(list(map(host, made)))
        state = jax.tree.unflatten(tree, made)[0]
    return found


def assert_close(found: list[Any], expected: list[Any]) -> None:
    """As I1 says for x64; leaves of a narrower type are there to their own rounding."""
    for mine, theirs in zip(found, expected, strict=True):
        if jnp.issubdtype(mine.dtype, jax.dtypes.prng_key):
            mine, theirs = jax.random.key_data(mine), jax.random.key_data(theirs)
        mine, theirs = np.asarray(mine), np.asarray(theirs)
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
        if not np.issubdtype(mine.dtype, np.floating):
            np.testing.assert_array_equal(mine, theirs)
            continue
        share = max(X64, 2 * float(np.finfo(mine.dtype).eps))
        atol = share * max(1.0, float(np.max(np.abs(theirs), initial=0.0)))
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=atol)


def params(numbers: range) -> list[Any]:
    return [
        pytest.param(n, marks=() if n in CHEAP else pytest.mark.slow, id=f"{n} {pipeline_case(n)}")
        for n in numbers
    ]


@pytest.mark.parametrize("number", params(range(NUM_CASES)))
def test_a_pipeline_of_any_kind_is_the_step(number: int) -> None:
    case = pipeline_case(number)
    with jax.enable_x64(case.model != "fp16"):
        step, args = MODELS[case.model]()
        expected = on_one_device(case, step, args)
        found = in_stages(case, step, args)
        if case.model == "fp16":
            for mine, theirs in zip(found, expected, strict=True):
                *_, loss, finite, scale = mine
                *_, want, want_finite, want_scale = theirs
                assert (bool(finite), float(scale)) == (bool(want_finite), float(want_scale))
                np.testing.assert_allclose(loss, want, rtol=FP16_LOSS)
            return
        for mine, theirs in zip(found, expected, strict=True):
            assert_close(mine, theirs)


def test_the_cases_are_of_every_kind() -> None:
    cases = [pipeline_case(n) for n in range(NUM_CASES)]
    assert {case.model for case in cases} == {*MODELS}
    assert {len(case.stages) for case in cases} >= {1, 2, 3, 4, 8}
    assert {case.schedule.num_microbatches for case in cases} == {1, 2, 4, 8}
    assert {stage[3] for case in cases for stage in case.stages} == {"none", "selective", "full"}
    assert len({str(case) for case in cases}) > 0.9 * NUM_CASES
    assert len({case.schedule.name for case in cases}) == 5
    assert sum(case.schedule.splits_backward for case in cases) > NUM_CASES // 4
    for case in cases[::2]:
        assert len({last - first for first, last, *_ in case.stages}) > 1
        assert len({stage[2] for stage in case.stages}) > 1 or case.schedule.num_meshes == 1
