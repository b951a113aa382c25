"""Small networks as integer programs, memory rows added when a choice breaks them.

Variables
    x[i, s] in {0, 1}      node i takes choice s
    y[e, s, t] in [0, 1]   the nodes of edge e take choices s and t

    min  sum c x + sum m y
    sum_s x[i, s] = 1                      for every node i
    sum_t y[e, s, t] = x[u, s]             for every edge e = (u, v) and choice s of u
    sum_s y[e, s, t] = x[v, t]             for every edge e = (u, v) and choice t of v
    sum usage[i, s] x[i, s] <= capacity    for the rows that were broken so far

The row and column sums make the relaxation as tight as the messages' bound.
"""

from __future__ import annotations

import itertools
import sys
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse as scipy_sparse  # pyright: ignore[reportMissingTypeStubs]

from meshwise.assignment.bounds.exact_bound import dearest
from meshwise.assignment.exact.highs import HighsEffort, HighsProgram, Outcome, solve_program
from meshwise.assignment.exact.highs_process import Beside
from meshwise.assignment.network import Network, starts

# Without type stubs.
sparse: Any = scipy_sparse

# The costs that are left to decide are scaled to this size.
_SCALE = 1e6
# What HiGHS says of costs is exact to about 1e-6; one unit must be far larger.
_LEAST_UNIT = 1e-4
_ROWS_A_TURN = 50
# A larger program goes to another process: HiGHS may be deaf for as long as its root takes.
_COLUMNS_HERE = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactAnswer:
    """What the program says.

    Attributes:
        choice: The best choice found; None if there is none.
        is_proved: Whether no other choice is better; without a choice, whether there is none.
        cost: Cost of the choice; infinite without one.
        num_looks: Times that HiGHS looked whether it had to end.
    """

    choice: NDArray[np.int64] | None
    is_proved: bool
    cost: float = np.inf
    num_looks: int = 0


def num_columns(network: Network) -> int:
    """Return columns of the program of a network."""
    return len(network.cost) + len(network.matrices)


class _Program:
    def __init__(self, network: Network, cutoff: float) -> None:
        self.network, self.cutoff = network, cutoff
        cost, self.constant = _above_minima(network)
        finite = np.isfinite(cost) & (cost + self.constant <= cutoff)
        self.upper = finite.astype(np.float64)
        self.cost = np.where(finite, cost, 0.0)
        # What the choices can add to the minima: up to the cutoff, or all that they cost at most.
        size = min(cutoff, dearest(network)) - self.constant
        self.scale = _SCALE / max(size, 1.0)
        self.matrix = _structure(network)
        count = len(network.size)
        self.row_lower = np.concatenate([np.ones(count), np.zeros(self.matrix.shape[0] - count)])
        self.row_upper = self.row_lower.copy()
        self.used: set[int] = set()

    def add_rows(self, rows: list[int]) -> None:
        """Add memory rows, scaled by their capacity."""
        net = self.network
        parts: list[Any] = []
        owner = np.repeat(np.arange(len(net.size)), np.diff(net.first_item))
        for row in rows:
            self.used.add(row)
            columns: list[int] = []
            values: list[float] = []
            for k in np.flatnonzero((net.item_low <= row) & (row < net.item_high)).tolist():
                i, first = int(owner[k]), int(net.first_usage[k])
                columns += range(int(net.first_choice[i]), int(net.first_choice[i + 1]))
                values += net.usage[first : first + int(net.size[i])].tolist()
            scale = max(float(net.capacity[row]), 1.0)
            parts.append(
                sparse.csr_matrix(
                    (np.array(values) / scale, (np.zeros(len(columns), np.int64), columns)),
                    shape=(1, len(self.cost)),
                )
            )
        self.matrix = sparse.vstack([self.matrix, *parts]).tocsr()
        limits = np.array([1.0 if net.capacity[r] > 0 else 0.0 for r in rows])
        self.row_lower = np.concatenate([self.row_lower, np.full(len(rows), -np.inf)])
        self.row_upper = np.concatenate([self.row_upper, limits])

    def as_columns(self) -> HighsProgram:
        """Return the program for HiGHS, its costs scaled."""
        return HighsProgram(
            cost=self.cost * self.scale,
            upper=self.upper,
            num_whole=len(self.network.cost),
            row_lower=self.row_lower,
            row_upper=self.row_upper,
            first=self.matrix.indptr.astype(np.int32),
            column=self.matrix.indices.astype(np.int32),
            value=self.matrix.data,
        )


@dataclass(slots=True)
class _Highs:
    """HiGHS, here or in a process of its own, while it may work.

    Attributes:
        effort: What is left to do.
        stop: One flag that another thread sets to 1 to end it.
        beside: The process.
        num_looks: Times that HiGHS has looked whether it had to end.
    """

    effort: HighsEffort
    stop: NDArray[np.int8] | None
    beside: Beside
    num_looks: int = 0

    @property
    def is_stopped(self) -> bool:
        """Return whether another thread has set the flag."""
        return self.stop is not None and bool(self.stop[0])

    def solve(self, program: HighsProgram) -> Outcome | None:
        """Solve a program; None if there is no outcome, or nothing may be done any more."""
        if self.effort.is_over or self.is_stopped:
            return None
        if len(program.cost) > _COLUMNS_HERE and sys.executable:
            found = self.beside.solve(program, self.effort, lambda: self.is_stopped)
        else:
            found = solve_program(program, self.effort, lambda: self.is_stopped)
        if found is not None:
            self.num_looks += found.num_looks
            self.effort = self.effort.less(found.num_looks)
        return found


def _structure(net: Network) -> Any:
    """Return the rows that give each node one choice and let edges agree with their nodes."""
    count, width = len(net.size), len(net.cost) + len(net.matrices)
    owner = np.repeat(np.arange(count), net.size)
    rows, columns, values = [owner], [np.arange(len(net.cost))], [np.ones(len(net.cost))]
    size_u, size_v = net.size[net.u], net.size[net.v]
    edge = np.repeat(np.arange(len(net.u)), size_u * size_v)
    entry = np.arange(len(net.matrices))
    inside = entry - net.first_entry[:-1][edge]
    top = count
    for own, size, number in (
        (net.u, size_u, inside // size_v[edge]),
        (net.v, size_v, inside % size_v[edge]),
    ):
        first: Any = starts(size)
        rows += [top + first[:-1][edge] + number, top + np.arange(first[-1])]
        which: Any = np.repeat(np.arange(len(own)), size)
        within = np.arange(int(first[-1])) - np.asarray(first[:-1][which], np.int64)
        columns += [len(net.cost) + entry, net.first_choice[:-1][own[which]] + within]
        values += [np.ones(len(entry)), -np.ones(first[-1])]
        top += int(first[-1])
    return sparse.coo_matrix(
        (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))),
        shape=(top, width),
    ).tocsr()


def solve_exactly(
    network: Network,
    *,
    cutoff: float,
    first_rows: list[int],
    effort: HighsEffort,
    stop: NDArray[np.int8] | None = None,
) -> ExactAnswer:
    """Find the best choice, or prove that none costs less than the cutoff.

    Args:
        network: A small network.
        cutoff: Cost of the best choice known, infinite if none is.
        first_rows: Memory rows to begin with, such as those that have a price.
        effort: What ends HiGHS.
        stop: One flag; the search ends when another thread sets it to 1.

    Returns:
        What is known then.

    Raises:
        SolverError: HiGHS failed.
    """
    program = _Program(network, cutoff)
    if first_rows:
        program.add_rows(first_rows)
    with Beside() as beside:
        highs = _Highs(effort, stop, beside)
        return replace(_solved(program, highs), num_looks=highs.num_looks)


def _solved(program: _Program, highs: _Highs) -> ExactAnswer:
    """Solve a program again and again, with the rows that its last solution broke."""
    network, trusted = program.network, program.scale >= _LEAST_UNIT
    while True:
        found = highs.solve(program.as_columns())
        if found is None:
            break
        if found.status == "infeasible":
            # Without a cutoff nothing depends on costs and their scale.
            return ExactAnswer(choice=None, is_proved=trusted or np.isinf(program.cutoff))
        if not len(found.values):
            break
        choice = _taken(network, found.values)
        room = _room_left(network, choice)
        if not len(room) or room.min() >= 0:
            cost = _cost_of(network, choice)
            if not np.isfinite(cost):
                break
            # Whole costs: a better choice would be cheaper by one.
            bound = found.bound / program.scale + program.constant
            proved = trusted and found.status == "optimal" and bound > cost - 0.5
            return ExactAnswer(choice=choice, is_proved=proved, cost=cost)
        if found.status != "optimal":
            break
        broken = [int(r) for r in np.argsort(room) if room[r] < 0 and int(r) not in program.used]
        if not broken:
            break
        program.add_rows(_spread(broken))
    return ExactAnswer(choice=None, is_proved=False)


def _taken(network: Network, values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return for each node the choice whose column has the largest value."""
    first = network.first_choice.tolist()
    return np.array(
        [int(np.argmax(values[low:high])) for low, high in itertools.pairwise(first)], np.int64
    )


def _above_minima(net: Network) -> tuple[NDArray[np.float64], float]:
    """Return costs less the least one of their node or edge, and the sum of what was taken."""
    parts: list[NDArray[np.float64]] = []
    constant = net.constant
    for values, first in ((net.cost, net.first_choice), (net.matrices, net.first_entry)):
        if len(first) < 2:
            continue
        least = np.minimum.reduceat(values, first[:-1])
        constant += float(least.sum())
        parts.append(values - np.repeat(least, np.diff(first)))
    return np.concatenate(parts), constant


def _cost_of(net: Network, choice: NDArray[np.int64]) -> float:
    """Return the cost of a choice as the kernel does, which a small problem need not wait for."""
    entry = net.first_entry[:-1] + choice[net.u] * net.size[net.v] + choice[net.v]
    own = net.cost[net.first_choice[:-1] + choice]
    return net.constant + float(own.sum()) + float(net.matrices[entry].sum())


def _room_left(net: Network, choice: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the bytes that a choice leaves in each row as the kernel does."""
    owner = np.repeat(np.arange(len(net.size)), np.diff(net.first_item))
    used = net.usage[net.first_usage + choice[owner]]
    change = np.zeros(len(net.capacity) + 1, np.int64)
    np.add.at(change, net.item_low, used)
    np.subtract.at(change, net.item_high, used)
    return net.capacity - np.cumsum(change)[:-1]


def _spread(broken: list[int]) -> list[int]:
    """Return some rows that are not all neighbours, in the order of their violation."""
    kept: list[int] = []
    for row in broken:
        if all(abs(row - other) > 10 for other in kept):
            kept.append(row)
        if len(kept) == _ROWS_A_TURN:
            break
    return kept
