"""Exchange of edges between neighbours, before the local form of an operator."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import jax.numpy as jnp
from jax import Array, lax

from meshwise.graph.halo import HaloEdge, edges
from meshwise.graph.layout import SUM
from meshwise.graph.loops import LoopRule, Strategy
from meshwise.spmd.shards import rank_along
from meshwise.trace.time.monoids import identity_of

# Runs a collective on a tile.
Communicate = Callable[[Callable[[Array], Array], Array], Array]


def direct(collective: Callable[[Array], Array], tile: Array) -> Array:
    """Run a collective at once."""
    return collective(tile)


def exchange(
    rule: LoopRule,
    strategy: Strategy,
    sizes: Sequence[int],
    names: Sequence[str],
    operands: Sequence[Array],
    communicate: Communicate = direct,
) -> list[Array]:
    """Return the operands with the edges of their neighbours around them.

    Args:
        rule: The loops of the operator.
        strategy: Its strategy.
        sizes: Sizes of the mesh axes.
        names: Names of the mesh axes.
        operands: Local tiles in the layouts that the strategy wants.
        communicate: Runs a collective on a tile.
    """
    out = list(operands)
    found = edges(rule, strategy, sizes)
    for halo, group in itertools.groupby(found, key=lambda edge: edge.halo):
        block = out[halo.operand]
        before: list[Array] = []
        after: list[Array] = []
        for edge in group:
            side = before if edge.from_before else after
            side.append(_taken(block, edge, sizes, names, communicate))
        out[halo.operand] = lax.concatenate([*before, block, *after], halo.dim)
    return out


def _taken(
    block: Array,
    edge: HaloEdge,
    sizes: Sequence[int],
    names: Sequence[str],
    communicate: Communicate,
) -> Array:
    """Return what one side of the block receives; at the end of the dim the neutral element."""
    dim, count = edge.halo.dim, edge.group_size
    start = block.shape[dim] - edge.width if edge.from_before else 0
    sent = lax.slice_in_dim(block, start, start + edge.width, axis=dim)
    # Each pair is a step up (to the block after) or down; who receives nothing gets zeros.
    pairs = [(i, i + 1) if edge.from_before else (i + 1, i) for i in range(count - 1)]
    axes = tuple(names[a] for a in edge.axes)
    received = communicate(lambda tile: lax.ppermute(tile, axes, pairs), sent)
    if edge.halo.monoid == SUM:
        return received
    rank = rank_along(edge.axes, sizes, names)
    at_end = rank == (0 if edge.from_before else count - 1)
    neutral = jnp.full_like(received, identity_of(edge.halo.monoid, received.dtype))
    return jnp.where(at_end, neutral, received)
