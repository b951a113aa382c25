"""Sharding propagation on networks of a few nodes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from meshwise.intra.network import Edge, LayoutNode
from meshwise.intra.propagate import propagate

MOVE = np.array([[0.0, 3.0], [3.0, 0.0]])


def node(position: int, *cost_s: float) -> LayoutNode:
    return LayoutNode(
        kind="boundary", ref=(position,), cost_s=np.array(cost_s), position=(position,)
    )


def edge(source: int, target: int) -> Edge:
    return Edge(source=source, target=target, cost_s=MOVE, place=(0, 0), group=0, key=0)


def network(nodes: list[LayoutNode], edges: list[Edge]) -> Any:
    return SimpleNamespace(nodes=tuple(nodes), edges=tuple(edges))


def test_each_node_follows_those_before_it() -> None:
    # The second would be cheaper split, but not by what it takes to move.
    assert propagate(network([node(0, 0.0, 1.0), node(1, 2.0, 0.0)], [edge(0, 1)])) == (0, 0)


def test_a_sum_that_begins_with_zeros_follows_what_is_added() -> None:
    nodes = [node(0, 0.0, 0.0), node(1, 5.0, 1.0), node(2, 0.0, 0.0)]
    assert propagate(network(nodes, [edge(0, 1), edge(0, 2)])) == (1, 1, 1)


def test_where_nothing_says_anything_first_choices_are_taken() -> None:
    nodes = [node(0, 0.0, 0.0), node(1, 1.0, 1.0), node(2, 4.0, 4.0)]
    assert propagate(network(nodes, [edge(0, 1), edge(1, 2)])) == (0, 0, 0)
