"""How many layers: as many as there are while they still repeat.

Layers that are equal are planned once, so that planning takes as long as there are kinds of
layers.  Clustering by eq. 6 finds the borders of a model's blocks when their number is right; then
most layers have the same operators and FLOP.
"""

from __future__ import annotations

from meshwise.errors import InfeasibleError
from meshwise.inter.clustering import DELTA, Layers, cluster_operators
from meshwise.inter.operator_chain import OperatorChain

MOST_LAYERS = 64
# One operator may be heavier than a whole layer, as the output embedding often is.
_DELTAS = (DELTA, 1.0, 2.0, 4.0, 8.0)
# More kinds of layers than the fewest possible that count as few.
_MORE_KINDS = 1


def regular_layers(chain: OperatorChain, most: int = MOST_LAYERS) -> Layers:
    """Cluster a chain into a number of layers at which they repeat.

    Of all numbers up to `most` whose layers are of few kinds (by number of operators and FLOP) the
    largest wins.

    Args:
        chain: The operators.
        most: At most so many layers.
    """
    found = [
        layers for count in range(1, most + 1) if (layers := clustered(chain, count)) is not None
    ]
    kinds = [num_kinds(layers) for layers in found]
    repeating = [k for k, layers in zip(kinds, found, strict=True) if k < len(layers.ranges)]
    fewest = min(repeating, default=0)
    if not repeating:
        return found[-1] if len(found) < 3 else min(found, key=_unevenness)
    return max(
        (layers for k, layers in zip(kinds, found, strict=True)
         if k <= fewest + _MORE_KINDS and k < len(layers.ranges)),
        key=lambda layers: len(layers.ranges),
    )  # fmt: skip


def clustered(chain: OperatorChain, count: int) -> Layers | None:
    """So many layers, as even as they can be; None if there are not so many cuts."""
    for delta in _DELTAS:
        try:
            return cluster_operators(chain, count, delta)
        except InfeasibleError:
            continue
    return None


def num_kinds(layers: Layers) -> int:
    """Different layers by number of operators and FLOP."""
    sizes = [last - first for first, last in layers.ranges]
    return len({(n, round(f, -3)) for n, f in zip(sizes, layers.flop, strict=True)})


def _unevenness(layers: Layers) -> float:
    """The largest layer's FLOP in means, and a little for having few layers."""
    return max(layers.flop) / (sum(layers.flop) / len(layers.flop)) + 8.0 / len(layers.flop)
