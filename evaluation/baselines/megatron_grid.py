"""Megatron-LM's grid: (dp, tp, pp), micro-batches, distributed optimizer, interleaving.

Layers are divided evenly; what stands before the repeated layers belongs to the first stage, what
stands after them to the last.  Devices are numbered along tp first, then dp, then pp.

Source: Megatron-LM (Narayanan et al. 2021); docs/facts.md section 6.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evaluation.baselines.result import Refused
from meshwise.baselines.pipelines.even_stages import divisors, stage_kind
from meshwise.cluster.spec import ClusterSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronPoint:
    """One point of the grid.

    Attributes:
        data_parallel: dp.
        tensor_parallel: tp.
        stages: pp.
        num_microbatches: B.
        is_sharded: Whether the optimizer is distributed over dp.
        chunks: v of interleaving; 1 for plain 1F1B.
    """

    data_parallel: int
    tensor_parallel: int
    stages: int
    num_microbatches: int
    is_sharded: bool
    chunks: int

    def __str__(self) -> str:
        """As `dp=2 tp=4 pp=1 B=8, distributed optimizer`."""
        text = f"dp={self.data_parallel} tp={self.tensor_parallel} pp={self.stages}"
        text += f" B={self.num_microbatches}"
        text += ", distributed optimizer" if self.is_sharded else ""
        return text + (f", interleaved {self.chunks}" if self.chunks > 1 else "")


def megatron_grid(
    cluster: ClusterSpec,
    num_blocks: int,
    batch_size: int,
    microbatch_counts: Sequence[int],
    *,
    largest_tensor_parallel: int | None = None,
) -> tuple[list[MegatronPoint], list[Refused]]:
    """Return all points that use every device, and the parts of the grid that cannot be.

    Args:
        cluster: Equal hosts.
        num_blocks: Repeated layers, to be divided evenly.
        batch_size: Rows of the whole batch.
        microbatch_counts: Values of B to try.
        largest_tensor_parallel: No tp above it; by default any.

    Raises:
        ClusterError: hosts differ.
    """
    points: list[MegatronPoint] = []
    refused: list[Refused] = []
    count = cluster.num_devices
    for stages in divisors(count):
        if num_blocks % stages:
            why = f"{num_blocks} layers cannot be divided evenly among {stages} stages"
            refused.append(Refused(label=f"pp={stages}", why=why))
            continue
        if stage_kind(cluster, stages) is None:
            why = f"{count // stages} devices are neither a part of a host nor whole hosts"
            refused.append(Refused(label=f"pp={stages}", why=why))
            continue
        for tensor in divisors(count // stages):
            if largest_tensor_parallel is not None and tensor > largest_tensor_parallel:
                continue
            data = count // stages // tensor
            allowed = [b for b in microbatch_counts if batch_size % (b * data) == 0]
            if not allowed:
                label = f"dp={data} tp={tensor} pp={stages}"
                why = f"no number of micro-batches gives {data} replicas whole rows of {batch_size}"
                refused.append(Refused(label=label, why=why))
            points += [
                MegatronPoint(
                    data_parallel=data,
                    tensor_parallel=tensor,
                    stages=stages,
                    num_microbatches=b,
                    is_sharded=is_sharded,
                    chunks=chunks,
                )
                for b in allowed
                for is_sharded in ((False, True) if data > 1 else (False,))
                for chunks in _chunks(num_blocks, stages, b)
            ]
    return points, refused


def _chunks(num_blocks: int, stages: int, num_microbatches: int) -> list[int]:
    """1, and what interleaving allows: even chunks, micro-batches a multiple of the stages."""
    if stages == 1 or num_microbatches % stages:
        return [1]
    return divisors(num_blocks // stages)
