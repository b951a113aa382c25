"""How many layers: as many as there are while they still repeat.

Layers that are equal are planned once, so that planning takes as long as there are kinds of
layers.  Clustering by eq. 6 finds the borders of a model's blocks when their number is right; then
most layers have the same operators and FLOP.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from meshwise.errors import InfeasibleError
from meshwise.inter.clustering.operator_chain import OperatorChain
from meshwise.inter.clustering.operator_clustering import DELTA, CutTable, Layers, cluster_table

MOST_LAYERS = 64
# One operator may be heavier than a whole layer, as the output embedding often is.
_DELTAS = (DELTA, 1.0, 2.0, 4.0, 8.0)
# More kinds of layers than the fewest possible that count as few.
_MORE_KINDS = 1
# Cuts through blocks let so many times the bytes pass that cuts between them do, or so many times
# the values.
_MORE_BYTES, _MORE_VALUES = 4, 1.1
# What a kind of layers takes to plan beside its operators, in operators.
_OF_A_KIND = 40
# Less work than this part of what few kinds take makes up for more kinds.
_LESS_WORK = 0.95


def regular_layers(chain: OperatorChain, most: int = MOST_LAYERS) -> Layers:
    """Cluster a chain into a number of layers at which they repeat.

    Looked at are numbers up to `most` whose layers all have heavy operators and do not cut through
    blocks.  Of those with few kinds of layers (by number of operators and FLOP) the largest wins.
    A still larger number wins if its kinds take clearly less to plan, as in convolutional networks,
    where few kinds are long layers.

    Args:
        chain: The operators.
        most: At most so many layers.
    """
    table = CutTable.of(chain)
    found = [
        layers
        for count in range(1, most + 1)
        if (layers := _clustered(table, count)) is not None
        and (count == 1 or all_are_heavy(chain, layers))
    ]
    kinds = [num_kinds(layers) for layers in found]
    repeating = [k for k, layers in zip(kinds, found, strict=True) if k < len(layers.ranges)]
    fewest = min(repeating, default=0)
    if not repeating:
        return found[-1] if len(found) < 3 else min(found, key=_unevenness)
    regular = [
        layers
        for k, layers in zip(kinds, found, strict=True)
        if k <= fewest + _MORE_KINDS and k < len(layers.ranges)
    ]
    regular = _between_blocks(regular)
    most_work = _LESS_WORK * planning_work(regular[-1])
    finer = [
        layers
        for layers in found
        if len(layers.ranges) > len(regular[-1].ranges)
        and planning_work(layers) <= most_work
        and not has_bypass(chain, layers)
    ]
    return _between_blocks([regular[-1], *finer])[-1]


def layers_for(chain: OperatorChain, num_stages: int) -> Layers:
    """Return as many layers as repeat, or as there are stages if those are too few for them.

    Args:
        chain: The operators.
        num_stages: How many stages are asked for.  A chain with fewer heavy operators is cut into
            fewer layers: as many as it can be, up to `MOST_LAYERS`.
    """
    found, num_heavy = regular_layers(chain), int(np.count_nonzero(chain.is_heavy))
    most = num_stages if num_stages <= num_heavy else min(num_heavy, MOST_LAYERS)
    if len(found.ranges) >= most:
        return found
    between_heavy = CutTable.of(chain, max_cuts=num_heavy - 1)
    counts = range(most, len(found.ranges), -1)
    return next(filter(None, (_clustered(between_heavy, count) for count in counts)), found)


def clustered(chain: OperatorChain, count: int) -> Layers | None:
    """Return a number of layers that are as even as they can be.

    Args:
        chain: The operators.
        count: Number of layers.

    Returns:
        The layers; None if there are not so many cuts.
    """
    return _clustered(CutTable.of(chain), count)


def _clustered(table: CutTable, count: int) -> Layers | None:
    for delta in _DELTAS:
        try:
            return cluster_table(table, count, delta)
        except InfeasibleError:
            continue
    return None


def all_are_heavy(chain: OperatorChain, layers: Layers) -> bool:
    """Whether every layer has a dense product or convolution: others are no work of their own."""
    return all(chain.is_heavy[first : last + 1].any() for first, last in layers.ranges)


def num_kinds(layers: Layers) -> int:
    """Different layers by number of operators and FLOP."""
    return len(_kinds(layers))


def has_bypass(chain: OperatorChain, layers: Layers) -> bool:
    """Whether a value goes past a layer that does not read it, as where a block is cut twice."""
    value, reader = chain.read_value, chain.read_by
    for first, last in layers.ranges:
        is_past = (chain.producer[value] < first) & (reader > last)
        is_read = (reader >= first) & (reader <= last)
        if np.setdiff1d(value[is_past], value[is_read]).size:
            return True
    return False


def _between_blocks(found: Sequence[Layers]) -> list[Layers]:
    """Those that receive not far more bytes than others, and of these not far more values."""
    few_bytes = _not_far_above(found, lambda layers: layers.worst_received_bytes, _MORE_BYTES)
    return _not_far_above(few_bytes, _values_a_cut, _MORE_VALUES)


def _not_far_above(
    found: Sequence[Layers], received: Callable[[Layers], float], times: float
) -> list[Layers]:
    """Those that receive at most so many times what others do, at least half as many layers."""

    def least(layers: Layers) -> float:
        fewest = max(len(layers.ranges) / 2, 2)
        counts = (received(other) for other in found if len(other.ranges) >= fewest)
        return min(counts, default=math.inf)

    return [layers for layers in found if received(layers) <= times * least(layers)]


def _values_a_cut(layers: Layers) -> float:
    return layers.num_received / max(len(layers.ranges) - 1, 1)


def planning_work(layers: Layers) -> int:
    """What planning the layers takes, equal ones once, in operators."""
    return sum(count + _OF_A_KIND for count, _ in _kinds(layers))


def _kinds(layers: Layers) -> set[tuple[int, float]]:
    """Numbers of operators and FLOP of different layers."""
    sizes = [last - first + 1 for first, last in layers.ranges]
    return {(n, round(f, -3)) for n, f in zip(sizes, layers.flop, strict=True)}


def _unevenness(layers: Layers) -> float:
    """The largest layer's FLOP in means, and a little for having few layers."""
    return max(layers.flop) / (sum(layers.flop) / len(layers.flop)) + 8.0 / len(layers.flop)
