"""Memory of values of other layers that a layer changes before it reads them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from meshwise.cluster.mesh import LogicalMesh
from meshwise.intra.shapes import local_bytes
from meshwise.pieces.neighbours import Arrival, LayerArrivals, LayerEnds


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalBytes:
    """Bytes of one device, beside the values that the programs of a layer read.

    Attributes:
        before: In the program that runs once before the first micro-batch.
        forward: In the forward pass.
        backward: In the backward pass; where it is split, in the gradients of activations.
        changed: Numbers of activations that left, whose cotangents are added up or changed.
    """

    before: int = 0
    forward: int = 0
    backward: int = 0
    changed: frozenset[int] = frozenset()

    def __bool__(self) -> bool:
        """Return whether there is any."""
        return bool(self.before or self.forward or self.backward)


NO_ARRIVALS = ArrivalBytes()


def arrival_bytes(arrivals: LayerArrivals, layer: LayerEnds, mesh: LogicalMesh) -> ArrivalBytes:
    """Return the bytes of values of other layers in the layouts in which they come.

    Args:
        arrivals: The values.
        layer: The layer that reads them.
        mesh: Where it runs.
    """

    def given(arriving: Iterable[Arrival]) -> int:
        return sum(
            local_bytes(arrival.tensor, term, mesh.sizes)
            for arrival in arriving
            if not arrival.is_as_wanted
            for term in arrival.terms
        )

    # A cotangent that is handed on is a result that the piece does not know of.
    leaves = layer.roles.passed.values()
    passing = set(zip(leaves, arrivals.passing, strict=True))
    read = {v.number for v in layer.programs.backward.inputs if v.role == "cotangent"}
    sums = {(number, change.tensor, change.before) for number, change in passing}
    results = sum(local_bytes(change.tensor, change.after, mesh.sizes) for _, change in passing)
    unread = sum(local_bytes(t, layout, mesh.sizes) for n, t, layout in sums if n not in read)
    carried = sum(local_bytes(c.tensor, c.before, mesh.sizes) for c in arrivals.carried)
    numbered = zip(layer.cotangents_wanted(), arrivals.backward, strict=True)
    return ArrivalBytes(
        before=given(arrivals.before),
        forward=given(arrivals.forward),
        backward=given(arrivals.backward) + results + unread + carried,
        changed=frozenset(n for n, a in numbered if a.terms and not a.is_as_wanted),
    )
