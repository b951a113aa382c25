"""Megatron-LM.

Source: `megatron/training/arguments.py` of the package megatron-core 0.19.2, and the configuration
classes from which it makes options.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

from meshwise.baselines.pipelines.even_stages import divisors
from meshwise.plan.stage import Remat
from meshwise.schedules.interleaved import Interleaved
from meshwise.schedules.one_f_one_b import ONE_F_ONE_B
from meshwise.schedules.pipeline_schedule import PipelineSchedule
from meshwise.trainers.grid import meshes, with_microbatches
from meshwise.trainers.layer_axes import LayerAxes, Role
from meshwise.trainers.point import TrainerPoint
from meshwise.trainers.sizes import Sizes
from meshwise.trainers.trainer import Trainer

_REMAT: dict[Remat, dict[str, str]] = {
    "none": {},
    "selective": {
        "--recompute-granularity": "selective",
        "--recompute-modules": "core_attn layernorm",
    },
    "full": {
        "--recompute-granularity": "full",
        "--recompute-method": "uniform",
        "--recompute-num-layers": "1",
    },
}


class Megatron(Trainer):
    """Stages of equally many layers, tensor and sequence parallel, copies that share optimizers."""

    name: ClassVar[str] = "megatron"
    title: ClassVar[str] = "Megatron-LM (megatron-core 0.19.2)"
    order: ClassVar[tuple[Role, ...]] = ("data", "expert", "context", "ring", "tensor")
    limits: ClassVar[tuple[str, ...]] = (
        "every stage has as many layers, devices and axes (at most three) as the others; "
        "all have the same remat",
        "left out: uneven layers (--pipeline-model-parallel-layout), Megatron-FSDP, overlap of "
        "gradients and parameters with computation, tensor parallelism across hosts",
        "selective remat is priced as recomputing all but products with weights",
    )

    def points(self, sizes: Sizes) -> Iterator[TrainerPoint]:
        """Yield the points; where there are copies, they split the optimizer's state."""
        for mesh in meshes(sizes):
            shards = mesh.row_parts * mesh.sequence_parts > 1
            for point in with_microbatches(replace(mesh, shards_optimizer=shards), sizes):
                for chunks in _chunks(point, sizes):
                    yield replace(point, chunks=chunks)

    def axes(self, point: TrainerPoint, sizes: Sizes) -> LayerAxes:
        """Return what the axes split in a layer."""
        return LayerAxes(
            roles=self.roles(point),
            sequence=sizes.sequence,
            optimizer_over=frozenset(("data", "expert", "context", "ring")),
        )

    def schedule(self, point: TrainerPoint) -> PipelineSchedule:
        """Return 1F1B; interleaved it sends and receives beside computation, by default."""
        if point.chunks == 1:
            return ONE_F_ONE_B
        return Interleaved(chunks=point.chunks, hides_transfers=True)

    def options(self, point: TrainerPoint, sizes: Sizes) -> dict[str, str]:
        """Return the options of a point."""
        found = {
            "--tensor-model-parallel-size": str(point.tensor),
            "--pipeline-model-parallel-size": str(point.pipeline),
        }
        if point.tensor > 1 and sizes.sequence is not None:
            found["--sequence-parallel"] = ""
        if point.chunks > 1:
            layers = sizes.layers_in_chunk(point)
            found["--num-layers-per-virtual-pipeline-stage"] = str(layers)
        if point.sequence_parts > 1:
            found["--context-parallel-size"] = str(point.sequence_parts)
            found["--cp-comm-type"] = "p2p" if point.ring > 1 else "all_gather"
        if point.expert > 1:
            found["--expert-model-parallel-size"] = str(point.expert)
        if point.shards_optimizer:
            found["--use-distributed-optimizer"] = ""
        rows = sizes.batch_size // (point.num_microbatches * point.row_parts)
        found["--micro-batch-size"] = str(rows)
        found["--global-batch-size"] = str(sizes.batch_size)
        return found | _REMAT[point.remat]

    def text(self, options: dict[str, str]) -> str:
        """Return the options as lines of a shell command."""
        words = (f"{name} {value}".rstrip() for name, value in options.items())
        return " \\\n".join(words) + "\n"


def _chunks(point: TrainerPoint, sizes: Sizes) -> list[int]:
    """1, and what interleaving allows: even chunks, micro-batches a multiple of the stages."""
    if point.pipeline == 1 or point.num_microbatches % point.pipeline:
        return [1]
    return divisors(sizes.num_blocks // point.pipeline)
