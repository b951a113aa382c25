"""A way to plan a run of layers on a submesh."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from meshwise.cluster.mesh import LogicalMesh
from meshwise.inter.layer_cost.state_costs import BytePrice
from meshwise.plan.stage import Remat


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A way to plan a run of layers.

    Attributes:
        mesh: The logical mesh.
        remat: What the backward pass computes again.
        price: Of memory.
    """

    mesh: LogicalMesh
    remat: Remat
    price: BytePrice


class LayerKey(NamedTuple):
    """A class of layers under a variant.

    Attributes:
        layer: The first layer of the class.
        variant: How it is planned.
        num_microbatches: B.
    """

    layer: int
    variant: Variant
    num_microbatches: int


class BoundsKey(NamedTuple):
    """What bounds of all layers are for.

    Attributes:
        mesh: The logical mesh.
        remat: What the backward pass computes again.
        num_microbatches: B.
    """

    mesh: LogicalMesh
    remat: Remat
    num_microbatches: int
