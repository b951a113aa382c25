"""What is kept from one part of a graph to a later one, and what is computed again instead.

A graph that is run as two programs, the forward pass and the backward pass, hands values over.
Which ones is a minimum cut over bytes: of what the second part reads, element-wise values are
computed again there if what they are made of takes no more room.

Source: docs/decisions/0013; Jain et al., "Checkmate" and the min-cut partitioner of AOTAutograd
have the same idea.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from meshwise.graph.graph import Graph, Operator
from meshwise.graph.light import is_bitcast
from meshwise.graph.minimum_cut import INFINITE, source_side
from meshwise.memory.liveness import writes_through

# Cheap to write down, dear to compute.
_DEAR = frozenset(("random_bits", "threefry2x32", "random_fold_in", "random_wrap", "random_split"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The border between two parts of a graph.

    Attributes:
        tensors: Values that the first part leaves for the second, ascending.
        again: Operators of the first part that the second runs once more, ascending.
    """

    tensors: tuple[int, ...]
    again: tuple[int, ...]


def ancestors(graph: Graph, tensors: Iterable[int]) -> frozenset[int]:
    """Operators (positions) that tensors follow from, generated values left out."""
    maker = {t: i for i, op in enumerate(graph.operators) for t in op.outputs}
    found: set[int] = set()
    todo = list(tensors)
    while todo:
        t = todo.pop()
        i = maker.get(t, -1)
        if i >= 0 and i not in found and not graph.tensors[t].generated:
            found.add(i)
            todo += graph.operators[i].inputs
    return frozenset(found)


def kept_between(
    graph: Graph, first: AbstractSet[int], wanted: Iterable[int], free: AbstractSet[int]
) -> Kept:
    """Return the cheapest border by bytes.

    Args:
        graph: The whole.
        first: Operators (positions) of the first part.
        wanted: Tensors that the second part reads.
        free: Tensors that are there at any time, such as weights.
    """
    maker = {t: i for i, op in enumerate(graph.operators) for t in op.outputs}
    border = _Border()
    seen: set[int] = set()
    read = {t for t in wanted if not graph.tensors[t].generated and t not in free}
    read = {t for t in read if maker.get(t, -1) in first or t in graph.inputs}
    todo = sorted(read)
    while todo:
        t = todo.pop()
        if t in seen:
            continue
        seen.add(t)
        border.add(t, graph.tensors[t].num_bytes)
        if t in read:
            border.need(t)
        i = maker.get(t, -1)
        if i < 0 or not _is_cheap(graph.operators[i]):
            border.give(t)
            continue
        for u in graph.operators[i].inputs:
            if not graph.tensors[u].generated and u not in free:
                border.follow(u, t)
                todo.append(u)
    tensors = border.cut()
    again: set[int] = set()
    todo = sorted(read - tensors)
    while todo:
        i = maker[todo.pop()]
        if i not in again:
            again.add(i)
            todo += [u for u in graph.operators[i].inputs if u in seen and u not in tensors]
    return Kept(tensors=tuple(sorted(tensors)), again=tuple(sorted(again)))


def _is_cheap(op: Operator) -> bool:
    return (writes_through(op) or is_bitcast(op)) and op.kind not in _DEAR and not op.bodies


class _Border:
    """The network of the minimum cut, from its end: each tensor is an edge from reader to maker."""

    def __init__(self) -> None:
        self.number: dict[int, int] = {}
        self.capacities: dict[tuple[int, int], int] = {}
        self.given: list[int] = []
        self.needed: list[int] = []

    def _ends(self, t: int) -> tuple[int, int]:
        """Return where a tensor is read, and where it is made."""
        n = self.number.setdefault(t, len(self.number))
        return 2 * n, 2 * n + 1

    def add(self, t: int, num_bytes: int) -> None:
        """A tensor, and what keeping it takes."""
        self.capacities[self._ends(t)] = num_bytes

    def give(self, t: int) -> None:
        """A tensor that cannot be computed again."""
        self.given.append(self._ends(t)[1])

    def need(self, t: int) -> None:
        """A tensor that the second part reads."""
        self.needed.append(self._ends(t)[0])

    def follow(self, u: int, t: int) -> None:
        """`t` can be computed again of `u` and others."""
        self.capacities[self._ends(t)[1], self._ends(u)[0]] = INFINITE

    def cut(self) -> set[int]:
        """Return the tensors to keep; of equal cuts the one with the least to compute again."""
        size = 2 * len(self.number)
        behind = source_side(size, self.capacities, self.needed, self.given)
        return {t for t, n in self.number.items() if 2 * n in behind and 2 * n + 1 not in behind}
