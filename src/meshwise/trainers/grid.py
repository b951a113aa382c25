"""Sizes of axes whose product is the number of devices, and numbers of micro-batches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from meshwise.baselines.pipelines.even_stages import divisors
from meshwise.trainers.point import TrainerPoint
from meshwise.trainers.sizes import Sizes


def meshes(sizes: Sizes) -> Iterator[TrainerPoint]:
    """Yield points with all sizes of axes, and one micro-batch; rows are split over `data` alone.

    Blocks are divided evenly among stages, stages are parts of a host or whole hosts, and the axis
    `tensor` stays inside a host and divides the heads.

    Args:
        sizes: The model and the cluster.
    """
    for pipeline in divisors(math.gcd(sizes.num_devices, sizes.num_blocks)):
        of_stage = sizes.num_devices // pipeline
        if of_stage % sizes.devices_per_host and sizes.devices_per_host % of_stage:
            continue
        for tensor in divisors(math.gcd(of_stage, sizes.devices_per_host, sizes.num_heads)):
            for context, ring in _sequence_axes(sizes, of_stage // tensor, tensor):
                rest = of_stage // tensor // (context * ring)
                for expert in divisors(math.gcd(rest, sizes.num_experts)):
                    yield TrainerPoint(
                        pipeline=pipeline,
                        data=rest // expert,
                        expert=expert,
                        context=context,
                        ring=ring,
                        tensor=tensor,
                    )


def _sequence_axes(sizes: Sizes, most: int, tensor: int) -> Iterator[tuple[int, int]]:
    """Yield sizes of the axes `context` and `ring`: at most one of them has several devices.

    Each device gets two equal pieces of the sequence, as causal masks want.
    """
    yield 1, 1
    if sizes.sequence is not None:
        length = sizes.sequence[1]
        for count in divisors(most)[1:]:
            if length % (2 * count * tensor) == 0:
                yield count, 1
                if sizes.has_rings:
                    yield 1, count


def with_microbatches(point: TrainerPoint, sizes: Sizes) -> Iterator[TrainerPoint]:
    """Yield a point with each number of micro-batches that gives every device whole rows.

    A sequence is not split among devices that could as well split rows: they would do the same
    work, and exchange keys and values besides.

    Args:
        point: A point with one micro-batch.
        sizes: The model and the cluster.
    """
    for count in sizes.microbatch_counts:
        rows, rest = divmod(sizes.batch_size, count * point.row_parts)
        if rest == 0 and math.gcd(rows, point.sequence_parts) == 1:
            yield replace(point, num_microbatches=count)
