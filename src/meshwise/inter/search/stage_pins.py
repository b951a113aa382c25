"""What a user fixes about stages: masks over the table of costs of stages.

A pin forbids entries (first layer, last layer, submesh, variant); the stage construction knows
nothing of pins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwise.cluster.submesh import SubmeshKind
from meshwise.inter.cost_table.variant import Variant
from meshwise.inter.stages.stage_problem import StageCosts
from meshwise.kernels.arrays import Bools
from meshwise.plan.stage import Remat


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePin:
    """What is fixed about one stage, or about all.

    Attributes:
        text: As the user wrote it.
        layer: A layer of the stage; None for every stage.
        ranges: Pairs (first layer, last layer), each of which is a stage.
        submesh: Hosts, and devices of each.
        host: Name of the kind of host.
        mesh: Sizes of the logical mesh, axes of size 1 left out.
        remat: What the backward pass computes again.
    """

    text: str
    layer: int | None = None
    ranges: tuple[tuple[int, int], ...] = ()
    submesh: tuple[int, int] | None = None
    host: str | None = None
    mesh: tuple[int, ...] | None = None
    remat: Remat | None = None


def without_ones(sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the sizes of a logical mesh without axes of one device.

    Args:
        sizes: Sizes of the mesh axes.
    """
    return tuple(size for size in sizes if size > 1)


def masked(
    costs: StageCosts,
    pins: Sequence[StagePin],
    kinds: Sequence[SubmeshKind],
    variants: Sequence[Sequence[Variant]],
) -> StageCosts:
    """The costs with everything that a pin forbids at infinite time.

    Args:
        costs: Of all stages.
        pins: What is fixed.
        kinds: Of submeshes, as the costs count them.
        variants: For each of them the ways to plan on it.
    """
    if not pins:
        return costs
    allowed = np.ones(costs.microbatch_s.shape, np.bool_)
    for pin in pins:
        allowed &= _allowed(pin, allowed.shape, kinds, variants)
    return replace(costs, microbatch_s=np.where(allowed, costs.microbatch_s, np.inf))


def _allowed(
    pin: StagePin,
    shape: tuple[int, ...],
    kinds: Sequence[SubmeshKind],
    variants: Sequence[Sequence[Variant]],
) -> Bools:
    """Which entries a pin lets pass."""
    first, last = np.indices(shape[:2])
    allowed = np.ones(shape, np.bool_)
    for low, high in pin.ranges:
        is_apart = (last < low) | (first > high)
        is_it = (first == low) & (last == high)
        allowed &= (is_apart | is_it)[:, :, None, None]
    fits = np.zeros(shape[2:], np.bool_)
    for m, (kind, ways) in enumerate(zip(kinds, variants, strict=True)):
        if pin.submesh not in (None, kind.shape) or pin.host not in (None, kind.host.name):
            continue
        for v, way in enumerate(ways):
            is_mesh = pin.mesh in (None, without_ones(way.mesh.sizes))
            fits[m, v] = is_mesh and pin.remat in (None, way.remat)
    elsewhere = np.zeros(shape[:2], np.bool_)
    if pin.layer is not None:
        elsewhere = (last < pin.layer) | (first > pin.layer)
    return allowed & (elsewhere[:, :, None, None] | fits)
