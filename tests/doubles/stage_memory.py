"""Memory of the stages of a model: as predicted, and as XLA reports it for their programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import optax

from doubles.layered_steps import SIGNATURE
from doubles.planned_stages import StageShape, planned_stages
from meshwise.inter.layer_cost.footprint import Footprint, footprint
from meshwise.models.mixed_precision import with_master_copy
from meshwise.models.named import model_config
from meshwise.models.steps import model_step
from meshwise.plan.stage import Remat
from meshwise.planner.pipeline import layers_of
from meshwise.runtime.device_memory import device_peak_bytes
from meshwise.runtime.pipeline.build import compiled_layers
from meshwise.runtime.pipeline.memory import measured_footprint, program_bytes
from meshwise.schedules.in_flight import held_at_peak
from meshwise.schedules.registry import make_schedule

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt": ("gpt-small", {}),
    "gpt remat": ("gpt-small", {"remat": True}),
    "bert": ("bert-tiny", {"hidden": 128, "num_layers": 4, "num_heads": 8, "seq_len": 128}),
    "llama": ("llama-small", {"hidden": 128, "ffn": 384}),
    "u-transformer": ("u-transformer-tiny", {"base_channels": 32}),
    "moe": ("moe-small", {"hidden": 128, "ffn": 512}),
    "wide-resnet": ("wide-resnet-tiny", {"base_channels": 16}),
}
NUM_LAYERS = 6


def stage_shapes(shapes: Sequence[tuple[int, int]], remat: Remat) -> list[StageShape]:
    """The layers divided evenly among stages on submeshes of these shapes."""
    size = NUM_LAYERS // len(shapes)
    return [(k * size, k * size + size - 1, shape, remat) for k, shape in enumerate(shapes)]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """One stage.

    Attributes:
        shape: Of its submesh.
        in_flight: Micro-batches that it holds at the peak.
        waiting: Micro-batches that wait for their gradients of weights then.
        predicted: Parts of one device as predicted.
        measured: As XLA reports them.
    """

    shape: tuple[int, ...]
    in_flight: int
    waiting: int
    predicted: Footprint
    measured: Footprint

    @property
    def ratio(self) -> float:
        """Predicted over measured peak."""
        held = self.in_flight, self.waiting
        return self.predicted.peak_bytes(*held) / self.measured.peak_bytes(*held)


def stage_memories(
    model: str,
    shapes: Sequence[tuple[int, int]],
    remat: Remat,
    dtype: str = "float32",
    *,
    schedule: str = "1f1b",
    has_master_copy: bool = False,
) -> Iterator[StageMemory]:
    """Plan and compile a model in stages, two micro-batches of four rows.

    Args:
        model: Of `MODELS`.
        shapes: Of the submeshes.
        remat: What the backward passes compute again.
        dtype: In which the model computes.
        schedule: By name.
        has_master_copy: Parameters are kept in `dtype`, too, with a float32 copy in the optimizer.
    """
    name, changes = MODELS[model]
    tx = optax.adam(1e-3)
    if has_master_copy:
        changes, tx = {**changes, "param_dtype": dtype}, with_master_copy(tx)
    made = model_step(model_config(name, dtype=dtype, **changes), 8, tx)
    state = jax.eval_shape(made.create, jax.random.key(0))
    local = "local" if model == "wide-resnet" else "exact"
    layers, _ = layers_of(
        made.step, (state, made.batch), {}, SIGNATURE, NUM_LAYERS, statistics=local
    )
    choices = planned_stages(layers, 2, stage_shapes(shapes, remat))
    table = make_schedule(schedule, num_stages=len(shapes), num_microbatches=2)
    splits = table.splits_backward
    compiled = compiled_layers(layers, choices, 2, splits_backward=splits)
    for number, shape in enumerate(shapes):
        mine = [layer for layer in compiled if layer.stage == number]
        said = [
            footprint(x.planned.piece, x.planned.roles.decision, x.logical, splits_backward=splits)
            for x in mine
        ]
        predicted = Footprint(
            resident_bytes=sum(f.resident_bytes for f in said),
            microbatch_bytes=sum(f.microbatch_bytes for f in said),
            temporary_bytes=max(f.temporary_bytes for f in said),
            weight_bytes=sum(f.weight_bytes for f in said),
        )
        both = predicted.microbatch_bytes, predicted.weight_bytes
        sizes = [[num_bytes] * len(shapes) for num_bytes in both]
        in_flight, waiting = held_at_peak(table, number, *sizes)[number]
        yield StageMemory(
            shape=shape,
            in_flight=in_flight,
            waiting=waiting,
            predicted=predicted,
            measured=measured_footprint(
                layer.parts.map(lambda _, p: program_bytes(p, device_peak_bytes(p.run)))
                for layer in mine
            ),
        )
