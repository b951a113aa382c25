"""Pipelines of every kind, by number: model, stages, submeshes, schedule, micro-batches, remat.

Every second one has uneven stages, unequal submeshes and an activation that skips a stage.  There
are 200 of all models, and 25 of small ones in few stages for every run of the tests.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax

from doubles.layered_steps import CLIPPED, Step, gpt_step, model, unet_step
from doubles.planned_stages import StageShape
from doubles.scaled_sgd import scaled_sgd
from doubles.scanned_steps import scanned_gpt, second_dim
from meshwise.models.mixed_precision import cast_floats, first_loss_scale, scale_loss
from meshwise.plan.stage import REMATS
from meshwise.schedules.delay import with_delays
from meshwise.schedules.registry import make_schedule, tables
from meshwise.schedules.schedule import Schedule

NUM_CASES = 200
NUM_SMALL_CASES = 25
NUM_FOLDED_CASES = 14
NUM_DEVICES = 8
ROWS = 8
Made = tuple[Step, tuple[Any, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineCase:
    """One pipeline.

    Attributes:
        model: Name in `MODELS` or `SMALL_MODELS`.
        stages: First and last layer, submesh and rematerialisation of each; of several on a mesh,
            the submesh is the same.
        schedule: Its table.
    """

    model: str
    stages: tuple[StageShape, ...]
    schedule: Schedule

    @property
    def num_layers(self) -> int:
        """Layers of all stages."""
        return self.stages[-1][1] + 1

    def __str__(self) -> str:
        parts = (f"{'x'.join(map(str, s[2]))}:{s[1] - s[0] + 1}{s[3][0]}" for s in self.stages)
        return (
            f"{self.model} {self.schedule.name} B{self.schedule.num_microbatches} {' '.join(parts)}"
        )


def skips() -> Made:
    return unet_step()


def half_precision() -> Made:
    """fp16 with a dynamic loss scale; the first step overflows and is skipped."""

    def step(state: Any, batch: Any) -> Any:
        scale = state["scale"]

        def scaled(params: Any) -> Any:
            half = cast_floats(params, jnp.float16)
            h = batch["x"].astype(jnp.float16)
            for w in half:
                h = jnp.tanh(h @ w)
            loss = jnp.mean((h.astype(jnp.float32) - batch["y"]) ** 2)
            return scale_loss(loss, scale), loss

        return scaled_sgd(state, scaled)

    rng = np.random.default_rng(0)
    params = [jnp.asarray(rng.normal(size=(16, 16)) / 4, "float32") for _ in range(8)]
    data = {k: rng.normal(size=(ROWS, 16)).astype(np.float32) for k in "xy"}
    return step, ({"params": params, "scale": first_loss_scale(2.0**27)}, data)


MODELS: dict[str, Callable[[], Made]] = {
    "gpt": lambda: gpt_step(CLIPPED, rows=ROWS, dropout=0.2),
    "bert": lambda: model("bert-tiny", CLIPPED, ROWS, num_layers=2),
    "llama": lambda: model("llama-tiny", CLIPPED, ROWS, num_layers=2),
    "moe": lambda: model("moe-tiny", CLIPPED, ROWS, num_layers=2, seq_len=8, group_size=8),
    "wide-resnet": lambda: model("wide-resnet-tiny", CLIPPED, ROWS),
    "u-transformer": lambda: model("u-transformer-tiny", CLIPPED, ROWS),
    "skips": skips,
    "scan": second_dim,
    "gpt scan": lambda: scanned_gpt(rows=ROWS, dropout=0.2),
    "momentum": lambda: gpt_step(optax.sgd(0.1, momentum=0.9), rows=ROWS),
    "fp16": half_precision,
}
SMALL_MODELS: dict[str, Callable[[], Made]] = {
    "skips": skips,
    "gpt of 1": lambda: gpt_step(CLIPPED, rows=ROWS, dropout=0.2, num_layers=1),
    "fp16": half_precision,
    "bert of 1": lambda: model("bert-tiny", CLIPPED, ROWS, num_layers=1, seq_len=8),
    "scan": second_dim,
    "llama of 1": lambda: model("llama-tiny", CLIPPED, ROWS, num_layers=1, seq_len=8),
    "momentum of 1": lambda: gpt_step(optax.sgd(0.1, momentum=0.9), rows=ROWS, num_layers=1),
}
_SKIPPING = ("u-transformer", "skips")
_OTHERS = tuple(name for name in MODELS if name not in _SKIPPING)
_SHAPES = ((1, 1), (1, 2), (2, 1), (1, 3), (1, 4), (2, 2), (4, 1))
# More than so many layers no model has.
_MOST_LAYERS = {"scan": 4, "skips": 5}
_SCHEDULES = (
    "1f1b",
    "zero-bubble-h1",
    "gpipe",
    "eager-1f1b",
    "interleaved-1f1b",
    "eager-1f1b delayed",
    "1f1b delayed",
)


def pipeline_case(number: int) -> PipelineCase:
    """One of the cases; equal numbers give equal cases."""
    rng = random.Random(number)
    uneven = number % 2 == 0
    chosen = _SKIPPING[number // 2 % 2] if uneven else _OTHERS[number // 2 % len(_OTHERS)]
    most = _MOST_LAYERS.get(chosen, 8)
    if _schedule_of(number) == "interleaved-1f1b":
        num_meshes, chunks = (2, 2) if most < 7 else rng.choice([(2, 2), (2, 3), (3, 2)])
    else:
        num_meshes, chunks = min(rng.choice((3, 4) if uneven else (1, 2, 3, 4, 8)), most), 1
    num_layers = min(num_meshes * chunks + rng.randint(1, 3) * uneven, most)
    return _case(rng, number, chosen, num_layers, num_meshes, chunks)


def small_case(number: int) -> PipelineCase:
    """One of the cases that take a few seconds; equal numbers give equal cases."""
    rng = random.Random(number)
    uneven = number % 2 == 0
    skipping, *others = SMALL_MODELS
    chosen = skipping if uneven else others[number // 2 % len(others)]
    chunks = 2 if _schedule_of(number) == "interleaved-1f1b" else 1
    num_meshes = 2 if chunks > 1 else 3 if uneven else rng.choice((1, 2, 2, 3))
    if chosen == "fp16" and chunks == 1:
        num_meshes = NUM_DEVICES
    return _case(rng, number, chosen, num_meshes * chunks + uneven, num_meshes, chunks)


def folded_case(number: int) -> PipelineCase:
    """One of the small cases whose stages lie in a V; equal numbers give equal cases."""
    rng = random.Random(number)
    names = tuple(SMALL_MODELS)
    chosen, schedule = names[number // 2 % len(names)], ("zb-v", "dualpipe-v")[number % 2]
    return _case(rng, number, chosen, 4 + number % 2, 2, 2, schedule)


def _schedule_of(number: int) -> str:
    return _SCHEDULES[number % len(_SCHEDULES)].split()[0]


def _case(
    rng: random.Random,
    number: int,
    chosen: str,
    num_layers: int,
    num_meshes: int,
    chunks: int,
    schedule_name: str = "",
) -> PipelineCase:
    """Draws what is not given."""
    uneven = number % 2 == 0
    name, *delayed = (schedule_name or _SCHEDULES[number % len(_SCHEDULES)]).split()
    num_stages = num_meshes * chunks
    allows = tables()[name].allows
    count = rng.choice([b for b in (1, 2, 4, 8) if allows(num_meshes, b)] or [0])
    if not count:
        # No power of two is a multiple of three meshes: all chunks on one.
        num_meshes, chunks, count = 1, num_stages, rng.choice((1, 2, 4))
    meshes = _submeshes(rng, num_meshes, uneven)
    schedule = make_schedule(
        name, num_stages=num_stages, num_microbatches=count, num_meshes=num_meshes
    )
    cuts = itertools.pairwise(_cuts(rng, num_layers, num_stages))
    stages = tuple(
        (low, high - 1, meshes[mesh], rng.choice(REMATS))
        for mesh, (low, high) in zip(schedule.mesh_of_stage, cuts, strict=True)
    )
    if delayed:
        schedule = with_delays(schedule, [rng.randint(0, 4) for _ in range(num_meshes)])
    return PipelineCase(model=chosen, stages=stages, schedule=schedule)


def _cuts(rng: random.Random, num_layers: int, num_stages: int) -> list[int]:
    """Where stages begin, and the end; not all equal where there are more layers than stages."""
    while True:
        inner = sorted(rng.sample(range(1, num_layers), num_stages - 1))
        cuts = [0, *inner, num_layers]
        sizes = {high - low for low, high in itertools.pairwise(cuts)}
        if len(sizes) > 1 or num_stages in (1, num_layers):
            return cuts


def _submeshes(rng: random.Random, count: int, uneven: bool) -> list[tuple[int, ...]]:
    """Submeshes that fit on the devices; unequal ones if so asked."""
    while True:
        left, found = NUM_DEVICES, list[tuple[int, ...]]()
        for k in range(count):
            most = left - (count - k - 1)
            found.append(rng.choice([s for s in _SHAPES if math.prod(s) <= most]))
            left -= math.prod(found[-1])
        rng.shuffle(found)
        if not uneven or count == 1 or len(set(found)) > 1:
            return found
