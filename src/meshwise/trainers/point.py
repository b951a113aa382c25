"""One point of what a trainer can express."""

from __future__ import annotations

from dataclasses import dataclass

from meshwise.plan.stage import Remat
from meshwise.units import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerPoint:
    """How a trainer may run a step.

    Attributes:
        pipeline: Number of stages.
        data: Number of copies of the parameters, each with rows of its own.
        fsdp: Number of devices that split rows, and also parameters, gradients and optimizer state.
        expert: The same for rows, and for experts where there are any.
        context: The same for the sequence; these devices gather keys and values.
        ring: The same, but keys and values go round these devices, block by block.
        tensor: The same for weights and heads, and for the sequence between products.
        shards_optimizer: Whether copies split the optimizer's state.
        num_microbatches: Into how many micro-batches a step is cut.
        chunks: Runs of layers that each stage holds; 1 where stages do not interleave.
        remat: What the backward pass of every layer computes again.
    """

    pipeline: int = 1
    data: int = 1
    fsdp: int = 1
    expert: int = 1
    context: int = 1
    ring: int = 1
    tensor: int = 1
    shards_optimizer: bool = False
    num_microbatches: int = 1
    chunks: int = 1
    remat: Remat = "none"

    @property
    def row_parts(self) -> int:
        """Devices among which the rows of a micro-batch are divided."""
        return self.data * self.fsdp * self.expert

    @property
    def sequence_parts(self) -> int:
        """Devices among which the sequence is divided, not counting those of `tensor`."""
        return self.context * self.ring

    @property
    def num_devices(self) -> int:
        """Devices in all."""
        return self.pipeline * self.row_parts * self.sequence_parts * self.tensor

    def __str__(self) -> str:
        """As `pipeline 2 (3 chunks each), data 4, tensor 8, 64 micro-batches, remat full`."""
        names = ("pipeline", "data", "fsdp", "expert", "context", "ring", "tensor")
        sizes = {name: int(getattr(self, name)) for name in names}
        words = [f"{name} {size}" for name, size in sizes.items() if size > 1]
        if self.chunks > 1:
            words[0] += f" ({self.chunks} chunks each)"
        if self.shards_optimizer:
            words.append("optimizer state split over copies")
        words.append(counted(self.num_microbatches, "micro-batch"))
        return ", ".join([*words, f"remat {self.remat}"])
