"""A planner's problem in the contest's form: whole numbers, one limit.

Costs become multiples of a unit, rounded down, so that a bound of the instance bounds the problem.
The row becomes the only time.  A pair that has weights gets a node whose choice says what one of
the two takes and how much the other makes of it: edges of cost zero where choices agree, infinite
elsewhere.

Source: the form is that of the ASPLOS 2025 contest on intra-operator parallelism.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from meshwise.assignment.instance import INFINITE_COST, Instance
from meshwise.assignment.network import starts
from meshwise.assignment.problem import Array, Problem, Row, objective
from meshwise.assignment.validity import check_problem
from meshwise.kernels.arrays import Ints

# Units, for each term, in the cost that choices may add: far more than rounding adds up to, and few
# enough for the proofs of floating-point engines where there are few terms.
_UNITS_A_TERM = 1e8
# The sum of the dearest choices stays where floating point counts exactly.
_MOST_UNITS = 2.0**52
_MOST_BYTES = 2.0**61
_LARGEST_EXPONENT = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """An instance and what its numbers mean.

    Attributes:
        instance: Its first nodes are those of the problem, the others follow them.
        num_nodes: Nodes of the problem.
        unit: Cost of one unit, in the problem's own (seconds for the planner).
        constant: Cost that every choice has besides, in the problem's own.
        is_exact: Whether a choice fits here if and only if it fits there; if not, for weights are
            fractions or too large, fewer choices fit here.
    """

    instance: Instance
    num_nodes: int
    unit: float
    constant: float
    is_exact: bool

    def cost(self, units: float) -> float:
        """Return what a cost of the instance, or a bound, is in the problem's own unit."""
        return units * self.unit + self.constant


@dataclass(slots=True)
class _Writer:
    """Nodes and edges while they are written."""

    costs: list[Ints] = field(default_factory=list[Ints])
    usages: list[Ints] = field(default_factory=list[Ints])
    intervals: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    edges: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    edge_costs: list[Ints] = field(default_factory=list[Ints])

    def node(self, costs: Ints) -> int:
        """Return a node that uses no memory."""
        self.costs.append(costs)
        self.usages.append(np.zeros(len(costs), np.int64))
        self.intervals.append((0, 0))
        return len(self.costs) - 1

    def use(self, u: int, usages: Ints) -> None:
        """Let a node use memory."""
        self.usages[u], self.intervals[u] = usages, (0, 1)

    def free(self, usages: Ints) -> int:
        """Return a node whose choices cost nothing."""
        u = self.node(np.zeros(len(usages), np.int64))
        self.use(u, usages)
        return u

    def edge(self, u: int, v: int, matrix: Ints) -> None:
        self.edges.append((u, v))
        self.edge_costs.append(matrix)

    def pair(self, u: int, v: int, usages: Ints) -> None:
        """Add a node for what two nodes use together, a matrix.

        It follows one of them, with a choice for each amount that the other may make of it: often
        two, where all pairs would be hundreds.
        """
        amounts, kind = np.unique(usages, return_inverse=True)
        kinds = kind.reshape(usages.shape)
        followed, other, kinds = min(
            ((v, u, kinds), (u, v, kinds.T)), key=lambda way: len(_numbers_of_ways(way[2]))
        )
        of, amount = np.divmod(_numbers_of_ways(kinds), len(amounts))
        follower = self.free(amounts[amount])
        same = of[None, :] == np.arange(len(self.costs[followed]))[:, None]
        for end, agree in ((followed, same), (other, kinds[:, of] == amount[None, :])):
            self.edge(end, follower, np.where(agree, 0, INFINITE_COST).astype(np.int64))


def _numbers_of_ways(kinds: Ints) -> Ints:
    """Number the choices of the second node and the kinds that the first makes of them."""
    of = np.arange(kinds.shape[1], dtype=np.int64)
    numbers: Ints = of[None, :] * (int(kinds.max()) + 1) + kinds
    return np.unique(numbers)


def encode(problem: Problem, *, reference: float | None = None, name: str = "") -> Encoded:
    """Write a problem as an instance.

    Args:
        problem: With at most one row, each node and pair of it once; costs may be infinite, weights
            negative.
        reference: A cost that some answer does not exceed, which sets the unit; by default the cost
            of the cheapest choice of each node.
        name: Name of the instance.

    Raises:
        SolverError: the problem is none (`validity.check_problem`).
    """
    check_problem(problem)
    shift = [_least(c) for c in problem.costs]
    shift_pairs = [_least(p.cost) for p in problem.pairs]
    constant = math.fsum(shift) + math.fsum(shift_pairs)
    unit = _unit(problem, constant, reference)
    writer = _Writer()
    for costs, least in zip(problem.costs, shift, strict=True):
        writer.node(_units(costs - least, unit))
    for pair, least in zip(problem.pairs, shift_pairs, strict=True):
        writer.edge(pair.u, pair.v, _units(pair.cost - least, unit))
    limit, is_exact = None, True
    if problem.rows:
        (row,) = problem.rows
        limit, is_exact = _write_row(row, writer)
    return Encoded(
        instance=_instance(writer, limit, name),
        num_nodes=len(problem.costs),
        unit=unit,
        constant=constant,
        is_exact=is_exact,
    )


def _least(costs: Array) -> float:
    finite = costs[np.isfinite(costs)]
    return float(finite.min()) if finite.size else 0.0


def _unit(problem: Problem, constant: float, reference: float | None) -> float:
    tables = [*problem.costs, *(p.cost for p in problem.pairs)]
    spans: list[float] = []
    for table in tables:
        finite = table[np.isfinite(table)]
        spans.append(float(finite.max() - finite.min()) if finite.size else 0.0)
    most = math.fsum(spans)
    if reference is None:
        cheapest = [int(np.argmin(c)) for c in problem.costs if c.size]
        reference = (
            objective(problem, cheapest) if len(cheapest) == len(problem.costs) else math.inf
        )
    span = min(reference - constant, most)
    finest = (span if span > 0 else most) / (_UNITS_A_TERM * max(len(tables), 1))
    return max(finest, most / _MOST_UNITS) or 1.0


def _units(costs: Array, unit: float) -> Ints:
    finite = np.isfinite(costs)
    whole = np.floor(np.where(finite, costs, 0.0) / unit)
    return np.where(finite, whole, INFINITE_COST).astype(np.int64)


def _write_row(row: Row, writer: _Writer) -> tuple[int, bool]:
    """Write the usages of nodes and pairs; the limit, and whether it is exact."""
    # A node of no choices: nothing is feasible, and its costs say so.
    nodes = [(u, w) for u, w in row.nodes if w.size]
    pairs = [(u, v, w) for u, v, w in row.pairs if w.size]
    weights = [*(w for _, w in nodes), *(w for _, _, w in pairs)]
    room, most = row.limit, 0.0
    for w in weights:
        room -= float(w.min())
        most += float(w.max() - w.min())
    if room < 0:
        # Not even the least weights fit, which one node that does not fit says as well.
        writer.free(np.ones(1, np.int64))
        return 0, True
    # Limits may be infinite.
    room = min(room, 2 * most)
    scale = _byte_scale(weights, room)
    for u, w in nodes:
        usages = _usages(w, scale)
        if usages.any():
            writer.use(u, usages)
    for u, v, w in pairs:
        usages = _usages(w, scale)
        if usages.any():
            writer.pair(u, v, usages)
    return math.floor(room * scale), scale == 1.0 and all(np.all(w == np.floor(w)) for w in weights)


def _byte_scale(weights: Sequence[Array], room: float) -> float:
    """Return 1 for bytes; a power of two where weights are fractions, or too many for 64 bits."""
    tables = [w - w.min() for w in weights]
    most = math.fsum(float(w.max(initial=0.0)) for w in tables) + room
    if most >= _MOST_BYTES:
        return 2.0 ** math.floor(math.log2(_MOST_BYTES / most))
    if all(np.all(w == np.floor(w)) for w in tables):
        return 1.0
    return 2.0 ** min(52 - math.ceil(math.log2(most)), _LARGEST_EXPONENT)


def _usages(weights: Array, scale: float) -> Ints:
    """Return what choices use above the least one."""
    return np.ceil((weights - weights.min()) * scale).astype(np.int64)


def _instance(writer: _Writer, limit: int | None, name: str) -> Instance:
    return Instance(
        name=name,
        first_choice=_starts(writer.costs),
        costs=_joined(writer.costs),
        usages=_joined(writer.usages),
        intervals=np.array(writer.intervals, np.int64).reshape(-1, 2),
        edges=np.array(writer.edges, np.int64).reshape(-1, 2),
        first_entry=_starts(writer.edge_costs),
        edge_costs=_joined([m.ravel() for m in writer.edge_costs]),
        limit=limit,
    )


def _starts(parts: Sequence[Ints]) -> Ints:
    return starts(np.array([p.size for p in parts], np.int64))


def _joined(parts: Sequence[Ints]) -> Ints:
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)
