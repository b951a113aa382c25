"""How much of what stages send passes between hosts, and how long it is gathered.

The search takes each byte to pass once, and copies of one activation at a cut to be gathered
between all devices, which is as long as a broadcast from as many hosts.  A plan has what its
strategy sends of every value that comes to a stage from another mesh.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from meshwise.cluster.spec import ClusterSpec
from meshwise.graph.layout import Layout
from meshwise.pieces.neighbours import Neighbours
from meshwise.plan.places import placed
from meshwise.plan.stage import Stage
from meshwise.program.names import Activation
from meshwise.resharding.between import Arrival, Passing, arrival


def with_passing(
    stages: Sequence[Stage], cluster: ClusterSpec, neighbours: Neighbours, transfers: str
) -> tuple[Stage, ...]:
    """Return stages with how much passes to them from other hosts.

    Args:
        stages: The stages, at their places.
        cluster: Where they run.
        neighbours: What their layers give to each other.
        transfers: One of `cross_mesh.strategies.STRATEGIES`; empty: each byte passes once, and
            stages stay as they are.
    """
    found = list(stages)
    hosts = [set(placed(stage, cluster).hosts) for stage in stages]
    for k, (left, right) in enumerate(pairwise(stages)):
        if not transfers or len(hosts[k] | hosts[k + 1]) == 1:
            continue
        ahead = _together(right, dict(_entering(right, neighbours)), transfers)
        back = _together(left, dict(_returning(left, neighbours)), transfers)
        if ahead is not None:
            found[k + 1] = replace(
                found[k + 1], forward_passing=ahead.passing, forward_gather_s=ahead.gather_s
            )
        if back is not None:
            found[k] = replace(
                found[k], backward_passing=back.passing, backward_gather_s=back.gather_s
            )
    return tuple(found)


def _entering(
    stage: Stage, neighbours: Neighbours
) -> Iterator[tuple[Activation, tuple[int, Layout]]]:
    """Yield the activations of other meshes: bytes of one micro-batch, and how each enters."""
    seen = set[Activation]()
    for k in range(stage.first_layer, stage.last_layer + 1):
        layer = neighbours.layers[k]
        entering = layer.arrival(neighbours.coming(k))
        for name, crossing in zip(layer.names.entering, layer.piece.entering, strict=True):
            if name in entering and name not in seen and not neighbours.is_made_here(k, name):
                seen.add(name)
                yield name, (crossing.num_bytes, entering[name])


def _returning(
    stage: Stage, neighbours: Neighbours
) -> Iterator[tuple[Activation, tuple[int, Layout]]]:
    """Yield the activations whose cotangents come from other meshes, likewise."""
    for k in range(stage.first_layer, stage.last_layer + 1):
        layer, readers = neighbours.layers[k], neighbours.readers(k)
        for leaves, layout in layer.cotangents_wanted().items():
            name = layer.names.leaving[leaves]
            if None in readers.get(name, {}).values():
                yield name, (layer.piece.leaving[leaves].num_bytes, layout)


def _together(
    stage: Stage, values: dict[Activation, tuple[int, Layout]], transfers: str
) -> Arrival | None:
    """Return the arrival of values one after another; None if there are none."""
    total = sum(num_bytes for num_bytes, _ in values.values())
    if not total:
        return None
    sent = received = gather_s = 0.0
    for num_bytes, layout in values.values():
        one = arrival(num_bytes, layout, stage.mesh, stage.submesh[0], transfers)
        sent += one.passing.sent * num_bytes / total
        received += one.passing.received * num_bytes / total
        gather_s += one.gather_s
    return Arrival(Passing(sent, received), gather_s)
