"""Repeated layers divided evenly among equal parts of a cluster.

What stands before the repeated layers belongs to the first stage, what stands after them to the
last.
"""

from __future__ import annotations

from itertools import pairwise

from meshwise.baselines.pipelines.block_layers import Body
from meshwise.cluster.spec import ClusterSpec
from meshwise.cluster.submesh import SubmeshKind
from meshwise.inter.clustering.operator_clustering import Ranges


def stage_kind(cluster: ClusterSpec, stages: int) -> SubmeshKind | None:
    """Return the equal part of the cluster that each stage gets; None if there is none.

    Raises:
        ClusterError: hosts differ.
    """
    size, per_host = cluster.num_devices // stages, cluster.devices_per_host
    if size > per_host and size % per_host == 0:
        return SubmeshKind(host=cluster.host, num_hosts=size // per_host, devices_per_host=per_host)
    if per_host % size == 0:
        return SubmeshKind(host=cluster.host, num_hosts=1, devices_per_host=size)
    return None


def chunk_ranges(body: Body, num_layers: int, num_chunks: int) -> Ranges:
    """First and last layer of each chunk: equally many periods; the ends have the rest too."""
    each = body.num_periods // num_chunks * body.period
    bounds = [body.first + k * each for k in range(num_chunks + 1)]
    bounds[0], bounds[-1] = 0, num_layers
    return tuple((a, b - 1) for a, b in pairwise(bounds))


def divisors(number: int) -> list[int]:
    """Return the divisors of a number, ascending."""
    return [d for d in range(1, number + 1) if number % d == 0]
