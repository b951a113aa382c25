"""A planner's problem in the contest's form: whole numbers, one interval a node, one limit.

Costs become multiples of a unit, rounded down, so that a bound of the instance bounds the problem.
Rows become times.  A node whose weights change from row to row gets nodes that follow
it; a pair that has weights gets one whose choice says what one of the two takes and how much the
other makes of it: edges of cost zero where choices agree, infinite elsewhere.
Rows with less room than the largest one carry a node that uses the difference.

Source: the form is that of the ASPLOS 2025 contest on intra-operator parallelism.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from meshwise.assignment.instance import INFINITE_COST, Instance
from meshwise.assignment.problem import Array, Problem, objective
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

    def free(self, usages: Ints, low: int, high: int) -> int:
        """Return a node whose choices cost nothing."""
        return self.node(np.zeros(len(usages), np.int64), usages, low, high)

    def node(self, costs: Ints, usages: Ints, low: int, high: int) -> int:
        self.costs.append(costs)
        self.usages.append(usages)
        self.intervals.append((low, high))
        return len(self.costs) - 1

    def use(self, u: int, usages: Ints, low: int, high: int) -> None:
        """Let a node use memory: itself if it uses none yet, else through one that follows it."""
        if self.intervals[u][0] < self.intervals[u][1]:
            count = len(usages)
            same = np.where(np.eye(count, dtype=bool), 0, INFINITE_COST).astype(np.int64)
            self.edge(u, self.free(usages, low, high), same)
        else:
            self.usages[u], self.intervals[u] = usages, (low, high)

    def edge(self, u: int, v: int, matrix: Ints) -> None:
        self.edges.append((u, v))
        self.edge_costs.append(matrix)

    def pair(self, u: int, v: int, usages: Sequence[Ints]) -> tuple[int, list[Ints]]:
        """Return a node for what two nodes use together, in one or more ways, pairs row-major.

        It follows one of them, with a choice for each amount that the other may make of it: often
        two, where all pairs would be hundreds.

        Returns:
            The node, and the usages of its choices.
        """
        shape = len(self.costs[u]), len(self.costs[v])
        amounts, kind = np.unique(
            np.concatenate(usages).reshape(len(usages), -1), axis=1, return_inverse=True
        )
        kinds = kind.reshape(shape)
        followed, other, kinds = min(
            ((v, u, kinds), (u, v, kinds.T)), key=lambda way: len(_numbers_of_ways(way[2]))
        )
        of, amount = np.divmod(_numbers_of_ways(kinds), amounts.shape[1])
        follower = self.free(np.zeros(len(of), np.int64), 0, 0)
        same = of[None, :] == np.arange(len(self.costs[followed]))[:, None]
        for end, agree in ((followed, same), (other, kinds[:, of] == amount[None, :])):
            self.edge(end, follower, np.where(agree, 0, INFINITE_COST).astype(np.int64))
        return follower, list(amounts[:, amount])


def _numbers_of_ways(kinds: Ints) -> Ints:
    """Number the choices of the second node and the kinds that the first makes of them."""
    of = np.arange(kinds.shape[1], dtype=np.int64)
    numbers: Ints = of[None, :] * (int(kinds.max()) + 1) + kinds
    return np.unique(numbers)


def encode(problem: Problem, *, reference: float | None = None, name: str = "") -> Encoded:
    """Write a problem as an instance.

    Args:
        problem: Costs may be infinite; weights of rows may be negative.
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
        zeros = np.zeros(len(costs), np.int64)
        writer.node(_units(costs - least, unit), zeros, 0, 0)
    for pair, least in zip(problem.pairs, shift_pairs, strict=True):
        writer.edge(pair.u, pair.v, _units(pair.cost - least, unit))
    limit, is_exact = _write_rows(problem, writer)
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


def _write_rows(problem: Problem, writer: _Writer) -> tuple[int | None, bool]:
    """Write usage of nodes and pairs at the times of the rows; the limit, whether it is exact."""
    if not problem.rows:
        return None, True
    of_node, of_pair = _by_time(problem)
    everything = [*of_node.values(), *of_pair.values()]
    room = [row.limit for row in problem.rows]
    for weights in everything:
        for time, found in weights.items():
            room[time] -= float(found.min())
    if min(room) < 0:
        # Not even the least weights fit, which one node that does not fit says as well.
        writer.free(np.ones(1, np.int64), 0, 1)
        return 0, True
    room = _enough(everything, room)
    scale = _byte_scale(everything, room)
    for u, weights in of_node.items():
        for low, high, usages in _runs(weights, scale):
            writer.use(u, usages, low, high)
    for (u, v), weights in of_pair.items():
        runs = list(_runs(weights, scale))
        if not runs:
            continue
        follower, amounts = writer.pair(u, v, [usages for _, _, usages in runs])
        for (low, high, _), usages in zip(runs, amounts, strict=True):
            writer.use(follower, usages, low, high)
    whole = [math.floor(r * scale) for r in room]
    limit = max(whole)
    for time, left in enumerate(whole):
        if left < limit:
            writer.free(np.array([limit - left], np.int64), time, time + 1)
    is_whole = all(np.all(w == np.floor(w)) for at in everything for w in at.values())
    return limit, is_whole and scale == 1.0


def _by_time(
    problem: Problem,
) -> tuple[dict[int, dict[int, Array]], dict[tuple[int, int], dict[int, Array]]]:
    """Return weights of nodes and of pairs at each time."""
    of_node: dict[int, dict[int, Array]] = {}
    of_pair: dict[tuple[int, int], dict[int, Array]] = {}
    for time, row in enumerate(problem.rows):
        for u, weights in row.nodes:
            if not weights.size:
                # A node of no choices: nothing is feasible, and its costs say so.
                continue
            at = of_node.setdefault(u, {})
            at[time] = at[time] + weights if time in at else weights
        for u, v, weights in row.pairs:
            if not weights.size:
                continue
            at = of_pair.setdefault((u, v), {})
            at[time] = at[time] + weights.ravel() if time in at else weights.ravel()
    return of_node, of_pair


def _enough(everything: Sequence[dict[int, Array]], room: Sequence[float]) -> list[float]:
    """Return room of at most twice what the weights of any row can use: limits may be infinite."""
    most = [0.0] * len(room)
    for weights in everything:
        for time, found in weights.items():
            most[time] += float(found.max() - found.min())
    return [min(r, 2 * max(most)) for r in room]


def _byte_scale(everything: Sequence[dict[int, Array]], room: Sequence[float]) -> float:
    """Return 1 for bytes; a power of two where weights are fractions, or too many for 64 bits."""
    tables = [w - w.min() for at in everything for w in at.values()]
    most = math.fsum(float(w.max(initial=0.0)) for w in tables) + max(room)
    if most >= _MOST_BYTES:
        return 2.0 ** math.floor(math.log2(_MOST_BYTES / most))
    if all(np.all(w == np.floor(w)) for w in tables):
        return 1.0
    return 2.0 ** min(52 - math.ceil(math.log2(most)), _LARGEST_EXPONENT)


def _runs(at: dict[int, Array], scale: float) -> Iterable[tuple[int, int, Ints]]:
    """Return usages above the least one, and the runs of times at which they are the same."""
    run: tuple[int, int, Ints] | None = None
    for time in sorted(at):
        usages = np.ceil((at[time] - at[time].min()) * scale).astype(np.int64)
        if run is not None and run[1] == time and np.array_equal(run[2], usages):
            run = (run[0], time + 1, usages)
            continue
        if run is not None and run[2].any():
            yield run
        run = (time, time + 1, usages)
    if run is not None and run[2].any():
        yield run


def _instance(writer: _Writer, limit: int | None, name: str) -> Instance:
    return Instance(
        name=name,
        first_choice=_first(writer.costs),
        costs=_joined(writer.costs),
        usages=_joined(writer.usages),
        intervals=np.array(writer.intervals, np.int64).reshape(-1, 2),
        edges=np.array(writer.edges, np.int64).reshape(-1, 2),
        first_entry=_first(writer.edge_costs),
        edge_costs=_joined([m.ravel() for m in writer.edge_costs]),
        limit=limit,
    )


def _first(parts: Sequence[Ints]) -> Ints:
    return np.concatenate([[0], np.cumsum([p.size for p in parts])]).astype(np.int64)


def _joined(parts: Sequence[Ints]) -> Ints:
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)
