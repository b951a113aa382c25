"""MaxText.

Source: `maxtext/configs/base.yml`, `configs/types.py` and `layers/nnx_decoders.py` of the package
maxtext 0.2.5.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

from meshwise.baselines.pipelines.even_stages import divisors
from meshwise.plan.stage import Remat
from meshwise.schedules.one_f_one_b import ONE_F_ONE_B
from meshwise.schedules.pipeline_schedule import PipelineSchedule
from meshwise.trainers.circular import Circular
from meshwise.trainers.grid import meshes, with_microbatches
from meshwise.trainers.layer_axes import LayerAxes, Role
from meshwise.trainers.point import TrainerPoint
from meshwise.trainers.sizes import Sizes
from meshwise.trainers.trainer import Trainer

# What it keeps beside the inputs of layers: nothing, products with weights, everything.
_REMAT: dict[Remat, str] = {"full": "full", "selective": "minimal", "none": "none"}


class MaxText(Trainer):
    """Fully sharded or copied parameters, sequence and tensor parallel, a circular pipeline."""

    name: ClassVar[str] = "maxtext"
    title: ClassVar[str] = "MaxText 0.2.5"
    order: ClassVar[tuple[Role, ...]] = ("data", "fsdp", "context", "ring", "tensor", "expert")
    limits: ClassVar[tuple[str, ...]] = (
        "every stage has as many layers, devices and axes (at most three) as the others; all "
        "forwards run before all backwards",
        "left out: offload, gradient accumulation around a pipeline, the axes fsdp_transpose and "
        "tensor (tensor_sequence splits the same products), Ulysses attention, tensor "
        "parallelism across hosts, several slices",
        "ring attention also needs options that are not printed: hardware=gpu and "
        "attention=cudnn_flash_te; on TPUs attention=flash and use_tokamax_splash=true",
        "embedding and head are priced as parts of the first and the last stage; MaxText divides "
        "them among all devices",
    )

    def points(self, sizes: Sizes) -> Iterator[TrainerPoint]:
        """Yield the points; copies split the optimizer's state where no axis `fsdp` does."""
        for mesh in meshes(sizes):
            for sharded in _sharded(mesh, sizes):
                for point in with_microbatches(sharded, sizes):
                    for chunks in _chunks(point, sizes):
                        yield replace(point, chunks=chunks)

    def axes(self, point: TrainerPoint, sizes: Sizes) -> LayerAxes:
        """Return what the axes split in a layer."""
        over: frozenset[Role] = frozenset(("fsdp", "context", "ring", "expert"))
        more: frozenset[Role] = frozenset(("data",) if point.shards_optimizer else ())
        return LayerAxes(
            roles=self.roles(point),
            sequence=sizes.sequence,
            parameters_over=over,
            optimizer_over=over | more,
        )

    def schedule(self, point: TrainerPoint) -> PipelineSchedule:
        """Return the circular pipeline; without stages micro-batches follow each other."""
        return ONE_F_ONE_B if point.pipeline == 1 else Circular(chunks=point.chunks)

    def options(self, point: TrainerPoint, sizes: Sizes) -> dict[str, str]:
        """Return the options of a point.

        Off TPUs all devices are one slice for MaxText, so all sizes stand in `ici_` options, and
        the axis `data` of slices must not be -1, as it is by default.
        """
        found = {
            "dcn_data_parallelism": 1,
            "ici_data_parallelism": point.data,
            "ici_fsdp_parallelism": point.fsdp,
            "ici_pipeline_parallelism": point.pipeline,
            "ici_context_parallelism": point.sequence_parts,
            "ici_tensor_sequence_parallelism": point.tensor,
            "ici_expert_parallelism": point.expert,
        }
        options = {name: str(value) for name, value in found.items()}
        if point.sequence_parts > 1:
            strategy = "ring" if point.ring > 1 else "all_gather"
            options["context_parallel_strategy"] = strategy
        options["shard_optimizer_over_data"] = str(point.shards_optimizer).lower()
        steps = point.num_microbatches if point.pipeline == 1 else 1
        options["per_device_batch_size"] = repr(sizes.batch_size / (steps * sizes.num_devices))
        options["gradient_accumulation_steps"] = str(steps)
        if point.pipeline > 1:
            layers = sizes.layers_in_chunk(point)
            options |= {
                "num_layers_per_pipeline_stage": str(layers),
                "num_pipeline_repeats": str(point.chunks),
                "num_pipeline_microbatches": str(point.num_microbatches),
                "scan_layers": "false",
            }
        return options | {"remat_policy": _REMAT[point.remat]}

    def text(self, options: dict[str, str]) -> str:
        """Return the options as lines of YAML."""
        return "".join(f"{name}: {value}\n" for name, value in options.items())


def _sharded(mesh: TrainerPoint, sizes: Sizes) -> Iterator[TrainerPoint]:
    """Copies, fully sharded, or fully sharded inside a host and copied among hosts."""
    inside = math.gcd(mesh.data, max(1, sizes.devices_per_host // (mesh.tensor * mesh.expert)))
    for fsdp in sorted({1, inside, mesh.data}):
        data = mesh.data // fsdp
        yield replace(mesh, data=data, fsdp=fsdp, shards_optimizer=data > 1 and fsdp == 1)


def _chunks(point: TrainerPoint, sizes: Sizes) -> list[int]:
    """Rounds of the pipeline; its micro-batches are a multiple of the stages."""
    if point.pipeline == 1:
        return [1]
    if point.num_microbatches % point.pipeline:
        return []
    return divisors(sizes.num_blocks // point.pipeline)
