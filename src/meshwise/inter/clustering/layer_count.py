"""How many layers: as many as there are while they still repeat.

Layers that are equal are planned once, so that planning takes as long as there are kinds of
layers.  Clustering by eq. 6 finds the borders of a model's blocks when their number is right; then
most layers have the same operators and FLOP.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

import numpy as np

from meshwise.errors import InfeasibleError
from meshwise.inter.clustering.operator_chain import OperatorChain
from meshwise.inter.clustering.operator_clustering import (
    DELTA,
    CutTable,
    Layers,
    cluster_table,
    layers_at,
)

# Finer layers make stages more even, and take little more to plan while they are of few kinds.
MOST_LAYERS = 128
# More are taken only if no value goes past a layer: the search does not choose its layout there.
_MANY_LAYERS = 64
# One operator may be heavier than a whole layer, as the output embedding often is.
_DELTAS = (DELTA, 1.0, 2.0, 4.0, 8.0)
# More kinds of layers than the fewest possible that count as few.
_MORE_KINDS = 1
# A cut through blocks lets so many times the bytes pass that cuts between them do.
_MORE_BYTES = 4
# What a kind of layers takes to plan beside its operators, in operators.
_OF_A_KIND = 40
# Less work than this part of what few kinds take makes up for more kinds.
_LESS_WORK = 0.95
# Layers whose FLOP differ by at most this share count as equal.  The first one also makes tables of
# positions.
_ABOUT = 0.01
# The penalty for a layer that receives several values, in squares of a mean layer.
_OF_SEVERAL_VALUES = 0.25


def regular_layers(chain: OperatorChain, most: int = MOST_LAYERS) -> Layers:
    """Cluster a chain into a number of layers at which they repeat.

    Looked at are numbers up to `most` whose layers all have heavy operators and do not cut through
    blocks.  In more than 64 layers no value may go past a layer.  Of those with few kinds of layers
    (by number of operators and FLOP) the largest wins.  A still larger number wins if its kinds
    take clearly less to plan, as in convolutional networks, where few kinds are long layers.  Then
    the same number of layers may be cut between other operators: where fewer values pass, so that
    residual blocks stay whole, or where more layers are equal, so that stages with equally many
    layers are equal too.

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
        and (count <= _MANY_LAYERS or not has_bypass(chain, layers))
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
    regular = [layers for layers in regular if not _cuts_blocks(layers, regular)]
    most_work = _LESS_WORK * planning_work(regular[-1])
    finer = [
        layers
        for layers in found
        if len(layers.ranges) > len(regular[-1].ranges)
        and planning_work(layers) <= most_work
        and not has_bypass(chain, layers)
        and not _cuts_blocks(layers, regular)
    ]
    return _with_most_equal(table, _with_whole_blocks(table, [regular[-1], *finer][-1]))


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


def _clustered(table: CutTable, count: int, of_several_values: float = 0.0) -> Layers | None:
    for delta in _DELTAS:
        try:
            return cluster_table(table, count, delta, of_several_values)
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


def _cuts_blocks(layers: Layers, others: Sequence[Layers]) -> bool:
    """Whether layers receive far more than others, of which there are at least half as many."""
    fewest = max(len(layers.ranges) / 2, 2)
    received = [o.worst_received_bytes for o in others if len(o.ranges) >= fewest]
    return bool(received) and layers.worst_received_bytes > _MORE_BYTES * min(received)


def _with_whole_blocks(table: CutTable, layers: Layers) -> Layers:
    """Return as many layers that receive fewer values, unless these take more to plan."""
    other = _clustered(table, len(layers.ranges), _OF_SEVERAL_VALUES)
    assert other is not None  # the same cuts are allowed
    is_better = (
        other.num_received < layers.num_received
        and planning_work(other) <= planning_work(layers)
        and all_are_heavy(table.chain, other)
        and (has_bypass(table.chain, layers) or not has_bypass(table.chain, other))
    )
    return other if is_better else layers


def _with_most_equal(table: CutTable, layers: Layers) -> Layers:
    """Return the layers with all cuts from some layer on moved later, if more are then equal.

    Where one layer and the last one have parts of one block, stages with equally many layers are
    not equal.  It is better to make what follows the blocks a layer of its own.
    """
    sizes = [last - first + 1 for first, last in layers.ranges]
    (period, _), *_ = Counter(sizes).most_common(1)
    others = [k for k, size in enumerate(sizes[:-1]) if size != period]
    best = layers
    for k, later in itertools.product(others, range(1, period)):
        moved = _moved(table, layers, k, later)
        if (
            moved is not None
            and _num_equal(moved) > _num_equal(best)
            and max(moved.flop) <= max(layers.flop) * (1 + _ABOUT)
            and moved.worst_received_bytes <= layers.worst_received_bytes
            and planning_work(moved) <= planning_work(layers)
            and all_are_heavy(table.chain, moved)
            and (has_bypass(table.chain, layers) or not has_bypass(table.chain, moved))
        ):
            best = moved
    return best


def _moved(table: CutTable, layers: Layers, since: int, later: int) -> Layers | None:
    """Return layers of which those from one on end later; None if that is no place for a cut."""
    cuts = [last + 1 for _, last in layers.ranges[:-1]]
    cuts[since:] = [end + later for end in cuts[since:]]
    if cuts[-1] >= table.chain.num_operators:
        return None
    places = np.searchsorted(table.boundaries, cuts)
    if (table.boundaries[places] != cuts).any():
        return None
    return layers_at(table, [0, *places.tolist(), len(table.boundaries) - 1])


def _num_equal(layers: Layers) -> int:
    """Return how many layers have about the FLOP that most layers have."""
    ((usual, _),) = Counter(round(f, -3) for f in layers.flop).most_common(1)
    return int(np.count_nonzero(np.isclose(layers.flop, usual, rtol=_ABOUT, atol=0.0)))


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
