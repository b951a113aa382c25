"""Pipelines of every kind are the step: the oracle is JAX on one device, over two steps (I1)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cache, lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from doubles.layered_steps import SIGNATURE, assert_replicas_are_equal, host
from doubles.pipeline_cases import (
    MODELS,
    NUM_CASES,
    NUM_FOLDED_CASES,
    NUM_SMALL_CASES,
    SMALL_MODELS,
    PipelineCase,
    folded_case,
    pipeline_case,
    small_case,
)
from doubles.stage_choices import choices_of
from meshwise.planner.pipeline import layers_of
from meshwise.runtime.pipeline.make_pipeline import make_pipeline
from meshwise.runtime.pipeline.stacked_ends import StackedEnds
from meshwise.trace.layers.layering import Layering
from oracle.one_device import run_traced, traced
from oracle.problem import quick_jit
from oracle.tolerances import FP16_LOSS, X64

pytestmark = pytest.mark.usefixtures("quick_steps")


@cache
def on_one_device(model: str, count: int) -> tuple[Any, Any, list[Any]]:
    """A step, its arguments, and the results of two steps.

    Args:
        model: Its name.
        count: Micro-batches with statistics of their own.
    """
    step, args = {**MODELS, **SMALL_MODELS}[model]()
    state, batch = args
    found: list[Any] = []
    for _ in range(2):
        if count > 1:
            local = traced(step, state, batch, b=count, num_devices=1, statistics="local")
            out = run_traced(local, state, batch)
        else:
            out = quick_jit(step)(state, batch)
        found.append(jax.tree.map(host, jax.tree.leaves(out)))
        state = out[0]
    return step, args, found


@lru_cache(maxsize=4)
def cut(model: str, num_layers: int, count: int) -> Layering:
    """The step in layers; cases of one model share what is traced of it."""
    step, args, _ = on_one_device(model, count)
    statistics = "local" if model == "wide-resnet" else "exact"
    layers, _ = layers_of(step, args, {}, SIGNATURE, num_layers, statistics=statistics)
    assert len(layers.ranges) == num_layers
    return layers


def in_stages(case: PipelineCase, count: int, host_path: list[Any]) -> list[Any]:
    """The same of a pipeline, in which nothing waits for values to pass over the host."""
    step, args, _ = on_one_device(case.model, count)
    layers = cut(case.model, case.num_layers, count)
    pipeline = make_pipeline(layers, choices_of(layers, case), case.schedule)
    assert layers.ends is not None
    ends = StackedEnds(layers.ends, [None] * len(layers.split.in_avals), pipeline.copier)
    state, batch = args
    tree = jax.tree.structure(jax.eval_shape(step, state, batch))
    found: list[Any] = []
    for _ in range(2):
        flat, _ = ends.arguments(jax.tree.leaves((state, batch)))
        host_path.clear()
        made = pipeline.run(flat)
        assert host_path == []
        made = ends.results(made)
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


def check(case: PipelineCase, host_path: list[Any]) -> None:
    with jax.enable_x64(case.model != "fp16"):
        count = case.schedule.num_microbatches if case.model == "wide-resnet" else 1
        _, _, expected = on_one_device(case.model, count)
        found = in_stages(case, count, host_path)
        if case.model == "fp16":
            for mine, theirs in zip(found, expected, strict=True):
                *_, loss, finite, scale = mine
                *_, want, want_finite, want_scale = theirs
                assert (bool(finite), float(scale)) == (bool(want_finite), float(want_scale))
                np.testing.assert_allclose(loss, want, rtol=FP16_LOSS)
            return
        for mine, theirs in zip(found, expected, strict=True):
            assert_close(mine, theirs)


# Of the small ones, for every run: each model, schedule, number of stages, B and rematerialisation.
QUICK = (1, 3, 4, 17, 19, 21, 23)


def params(
    count: int, make: Callable[[int], PipelineCase], quick: Collection[int] = ()
) -> list[Any]:
    marks = [[] if n in quick else [pytest.mark.slow] for n in range(count)]
    return [pytest.param(make(n), id=f"{n} {make(n)}", marks=marks[n]) for n in range(count)]


@pytest.mark.parametrize("case", params(NUM_SMALL_CASES, small_case, QUICK))
def test_a_small_pipeline_of_any_kind_is_the_step(case: PipelineCase, host_path: list[Any]) -> None:
    check(case, host_path)


@pytest.mark.parametrize("case", params(NUM_FOLDED_CASES, folded_case, (0, 3)))
def test_a_pipeline_in_a_v_is_the_step(case: PipelineCase, host_path: list[Any]) -> None:
    check(case, host_path)


@pytest.mark.parametrize("case", params(NUM_CASES, pipeline_case))
def test_a_pipeline_of_any_kind_is_the_step(case: PipelineCase, host_path: list[Any]) -> None:
    check(case, host_path)


def test_the_cases_are_of_every_kind() -> None:
    cases = [pipeline_case(n) for n in range(NUM_CASES)]
    assert {case.model for case in cases} == {*MODELS}
    assert {len(case.stages) for case in cases} >= {1, 2, 3, 4, 8}
    assert len({str(case) for case in cases}) > 0.9 * NUM_CASES
    small = [small_case(n) for n in range(NUM_SMALL_CASES)]
    assert len({str(case) for case in small}) == NUM_SMALL_CASES
    for found in (small, [small[n] for n in QUICK]):
        assert {case.model for case in found} == {*SMALL_MODELS}
        assert {len(case.stages) for case in found} >= {1, 2, 3, 4, 8}
        assert {case.schedule.num_microbatches for case in found} == {1, 2, 4, 8}
        remats = {stage[3] for case in found for stage in case.stages}
        assert remats == {"none", "selective", "full"}
        assert len({case.schedule.name for case in found}) == 5
    for found in (cases, small):
        assert {case.schedule.num_microbatches for case in found} == {1, 2, 4, 8}
        remats = {stage[3] for case in found for stage in case.stages}
        assert remats == {"none", "selective", "full"}
        assert len({case.schedule.name for case in found}) == 5
        assert sum(case.schedule.splits_backward for case in found) > len(found) // 4
        for case in found[::2]:
            assert len({last - first for first, last, *_ in case.stages}) > 1
            assert len({stage[2] for stage in case.stages}) > 1 or case.schedule.num_meshes == 1
