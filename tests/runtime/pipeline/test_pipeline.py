"""A step in pipeline stages is the step: the oracle is JAX on one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import optax
import pytest

from doubles.layered_steps import (
    CLIPPED,
    Step,
    assert_equal,
    assert_replicas_are_equal,
    gpt_step,
    host,
    layering,
    model,
    unet_step,
)
from doubles.planned_stages import StageShape, planned_stages
from meshwise.runtime.pipeline.make_pipeline import make_pipeline
from meshwise.schedules.registry import make_schedule
from oracle.one_device import run_traced, traced
from oracle.problem import quick_jit

pytestmark = pytest.mark.usefixtures("quick_steps", "x64")

Case = tuple[Callable[[], tuple[Step, tuple[Any, ...]]], int, str, list[StageShape]]

CASES: dict[str, Case] = {
    "tied embedding, clipping, dropout, uneven stages": (
        lambda: gpt_step(CLIPPED, dropout=0.2),
        4,
        "1f1b",
        [(0, 1, (2, 2), "none"), (2, 2, (1, 2), "full"), (3, 4, (2, 1), "none")],
    ),
    "momentum": (
        lambda: gpt_step(optax.sgd(0.1, momentum=0.9), dropout=0.2),
        2,
        "1f1b",
        [(0, 2, (2, 2), "none"), (3, 4, (1, 4), "none")],
    ),
    "skips over a stage": (
        unet_step,
        4,
        "gpipe",
        [(0, 1, (2, 1), "none"), (2, 2, (1, 2), "full"), (3, 4, (2, 2), "none")],
    ),
    "gradients of weights apart, skips over a stage": (
        unet_step,
        4,
        "zero-bubble-h1",
        [(0, 1, (2, 1), "none"), (2, 2, (1, 2), "full"), (3, 4, (2, 2), "none")],
    ),
    "gradients of weights apart, tied embedding, dropout": (
        lambda: gpt_step(CLIPPED, dropout=0.2),
        4,
        "zero-bubble-h1",
        [(0, 1, (2, 2), "none"), (2, 2, (1, 2), "full"), (3, 4, (2, 1), "none")],
    ),
}


# Small ones run always: test_combinations.py.
@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_pipeline_is_the_step(name: str, host_path: list[Any]) -> None:
    make, count, schedule, shapes = CASES[name]
    step, args = make()
    layers = layering(step, args, 5)
    expected = jax.tree.map(host, jax.tree.leaves(quick_jit(step)(*args)))
    order = make_schedule(schedule, num_stages=len(shapes), num_microbatches=count)
    pipeline = make_pipeline(layers, planned_stages(layers, count, shapes), order)
    host_path.clear()
    found = pipeline.run(jax.tree.leaves(args))
    assert host_path == [], "something waited for values to pass over the host"
    assert_equal(found, expected)
    for array in found:
        assert_replicas_are_equal(array)


TWO: list[StageShape] = [(0, 1, (2, 1), "none"), (2, 3, (1, 2), "full")]
THREE: list[StageShape] = [
    (0, 1, (2, 2), "full"),
    (2, 2, (1, 1), "none"),
    (3, 4, (1, 2), "none"),
]


@pytest.mark.slow
@pytest.mark.parametrize("shapes", [TWO, THREE], ids=["two stages", "three stages"])
@pytest.mark.parametrize(
    "name", ["bert", "llama", "moe", "experts", "wide-resnet", "u-transformer"]
)
def test_a_model_in_stages_is_the_step(name: str, shapes: list[StageShape]) -> None:
    """Cuts wherever they fall: in a softmax, behind a router, in the middle of a norm."""
    changes: dict[str, dict[str, Any]] = {
        "bert": {"num_layers": 2},
        "llama": {"num_layers": 2},
        "moe": {"num_layers": 4, "seq_len": 8, "group_size": 8},
    }
    step, args = model(f"{name}-tiny", CLIPPED, 4, **changes.get(name, {}))
    is_local = name == "wide-resnet"
    layers = layering(step, args, shapes[-1][1] + 1, local_statistics=is_local)
    if is_local:
        expected = run_traced(traced(step, *args, b=2, num_devices=1, statistics="local"), *args)
    else:
        expected = quick_jit(step)(*args)
    expected = jax.tree.map(host, jax.tree.leaves(expected))
    order = make_schedule("1f1b", num_stages=len(shapes), num_microbatches=2)
    pipeline = make_pipeline(layers, planned_stages(layers, 2, shapes), order)
    found = pipeline.run(jax.tree.leaves(args))
    assert_equal(found, expected)
    for array in found:
        assert_replicas_are_equal(array)
