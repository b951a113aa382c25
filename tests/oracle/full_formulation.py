"""The integer linear program of intra-operator planning.

Variables
    s[v, i] in {0, 1}     node v takes choice i                                  (`_node_columns`)
    e[p, i, j] in [0, 1]  the nodes of pair p = (u, v) take choices i and j       (`_pair_columns`)

Objective                                                                        (the same two)
    min  sum_v sum_i c[v, i] s[v, i]  +  sum_p sum_ij r[p, i, j] e[p, i, j]

Constraints
    sum_i s[v, i] = 1                      for every node v                      (`_one_choice`)
    sum_j e[p, i, j] = s[u, i]             for every pair p = (u, v), choice i   (`_agree`)
    sum_i e[p, i, j] = s[v, j]             for every pair p = (u, v), choice j   (`_agree`)
    sum_v m[t, v, i] s[v, i] + sum_p m[t, p, i, j] e[p, i, j] <= M[t]            (`_limits`)
                                           for every row t (bytes live at one time)

The row and column sums make the relaxation tight: on a tree it is integral.  Infinite costs fix
their variables at zero.  e is integral whenever s is, so only s is declared integer.

Source: Alpa eq. 1; c here is its c + d.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import highspy
import numpy as np

from meshwise.assignment.problem import PairCost, Problem, Solution, is_feasible, objective
from meshwise.errors import SolverError

# The objective is scaled to this size, so that the solver's absolute tolerances (1e-7) lie far
# below differences that matter.
_SCALE = 1e4


@dataclass(slots=True)
class _Program:
    """Columns and rows while they are written; rows are sparse."""

    cost: list[float] = field(default_factory=list[float])
    upper: list[float] = field(default_factory=list[float])
    whole: list[bool] = field(default_factory=list[bool])
    row_lower: list[float] = field(default_factory=list[float])
    row_upper: list[float] = field(default_factory=list[float])
    starts: list[int] = field(default_factory=lambda: [0])
    columns: list[int] = field(default_factory=list[int])
    values: list[float] = field(default_factory=list[float])

    def row(self, columns: Sequence[int], values: Sequence[float], lower: float, upper: float):
        self.columns.extend(columns)
        self.values.extend(values)
        self.starts.append(len(self.columns))
        self.row_lower.append(lower)
        self.row_upper.append(upper)


def _node_columns(problem: Problem, program: _Program, scale: float) -> list[int]:
    """Write s and its costs; returns the first column of each node."""
    first: list[int] = []
    for costs in problem.costs:
        first.append(len(program.cost))
        for cost in costs.tolist():
            program.cost.append(cost * scale if math.isfinite(cost) else 0.0)
            program.upper.append(1.0 if math.isfinite(cost) else 0.0)
            program.whole.append(True)
    return first


def _pair_columns(problem: Problem, program: _Program, scale: float) -> list[int]:
    """Write e and its costs; returns the first column of each pair."""
    first: list[int] = []
    for pair in problem.pairs:
        first.append(len(program.cost))
        flat = pair.cost.ravel()
        finite = np.isfinite(flat)
        program.cost.extend((np.where(finite, flat, 0.0) * scale).tolist())
        program.upper.extend(np.where(finite, 1.0, 0.0).tolist())
        program.whole.extend([False] * flat.size)
    return first


def _one_choice(problem: Problem, program: _Program, nodes: list[int]) -> None:
    for first, costs in zip(nodes, problem.costs, strict=True):
        size = len(costs)
        program.row(range(first, first + size), [1.0] * size, 1.0, 1.0)


def _agree(problem: Problem, program: _Program, nodes: list[int], pairs: list[int]) -> None:
    for first, pair in zip(pairs, problem.pairs, strict=True):
        rows, columns = pair.cost.shape
        for i in range(rows):
            mine = range(first + i * columns, first + (i + 1) * columns)
            program.row([*mine, nodes[pair.u] + i], [1.0] * columns + [-1.0], 0.0, 0.0)
        for j in range(columns):
            mine = range(first + j, first + rows * columns, columns)
            program.row([*mine, nodes[pair.v] + j], [1.0] * rows + [-1.0], 0.0, 0.0)


def _limits(problem: Problem, program: _Program, nodes: list[int], pairs: list[int]) -> None:
    index = {(p.u, p.v): k for k, p in enumerate(problem.pairs)}
    for row in problem.rows:
        unit = max(abs(row.limit), 1.0)
        columns: list[int] = []
        values: list[float] = []
        for node, weights in row.nodes:
            for i in np.flatnonzero(weights).tolist():
                columns.append(nodes[node] + i)
                values.append(float(weights[i]) / unit)
        for u, v, weights in row.pairs:
            first, width = pairs[index[u, v]], weights.shape[1]
            for i, j in np.argwhere(weights).tolist():
                columns.append(first + i * width + j)
                values.append(float(weights[i, j]) / unit)
        merged: dict[int, float] = {}
        for column, value in zip(columns, values, strict=True):
            merged[column] = merged.get(column, 0.0) + value
        program.row(list(merged), list(merged.values()), -highspy.kHighsInf, row.limit / unit)


def _model(program: _Program) -> highspy.HighsLp:
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(program.cost), len(program.row_lower)
    lp.col_cost_ = np.array(program.cost)
    lp.col_lower_ = np.zeros(lp.num_col_)
    lp.col_upper_ = np.array(program.upper)
    lp.row_lower_ = np.array(program.row_lower)
    lp.row_upper_ = np.array(program.row_upper)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = np.array(program.starts, dtype=np.int32)
    lp.a_matrix_.index_ = np.array(program.columns, dtype=np.int32)
    lp.a_matrix_.value_ = np.array(program.values)
    kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
    lp.integrality_ = [kinds[w] for w in program.whole]
    return lp


def _with_missing_pairs(problem: Problem) -> Problem:
    """Rows may weigh pairs that no edge prices: such pairs get an edge of cost zero."""
    known = {(p.u, p.v) for p in problem.pairs}
    extra: dict[tuple[int, int], PairCost] = {}
    for row in problem.rows:
        for u, v, weights in row.pairs:
            if (u, v) not in known and (u, v) not in extra:
                extra[u, v] = PairCost(u=u, v=v, cost=np.zeros(weights.shape))
    if not extra:
        return problem
    return Problem(costs=problem.costs, pairs=(*problem.pairs, *extra.values()), rows=problem.rows)


def solve_ilp(
    problem: Problem,
    *,
    incumbent: tuple[int, ...] | None,
    time_limit_s: float,
    seed: int,
) -> Solution:
    """Solve with HiGHS.

    Args:
        problem: Each pair of nodes at most once.
        incumbent: A known choice to start from.
        time_limit_s: Wall-clock limit.
        seed: Of the solver.

    Raises:
        SolverError: HiGHS failed.
    """
    problem = _with_missing_pairs(problem)
    best = incumbent if incumbent is not None and is_feasible(problem, incumbent) else None
    reference = objective(problem, best) if best is not None else _reference(problem)
    scale = _SCALE / reference if reference > 0 else 1.0
    program = _Program()
    nodes = _node_columns(problem, program, scale)
    pairs = _pair_columns(problem, program, scale)
    _one_choice(problem, program, nodes)
    _agree(problem, program, nodes, pairs)
    _limits(problem, program, nodes, pairs)
    solver = highspy.Highs()
    for name, value in (
        ("output_flag", False),
        ("threads", 1),
        ("random_seed", seed),
        ("time_limit", max(time_limit_s, 0.01)),
        ("mip_rel_gap", 0.0),
        ("mip_abs_gap", 1e-7),
        ("mip_feasibility_tolerance", 1e-9),
        ("primal_feasibility_tolerance", 1e-9),
    ):
        solver.setOptionValue(name, value)
    solver.passModel(_model(program))
    if best is not None:
        start = highspy.HighsSolution()
        start.col_value = _columns(problem, nodes, pairs, best, len(program.cost)).tolist()
        solver.setSolution(start)
    solver.run()
    status = solver.getModelStatus()
    if status == highspy.HighsModelStatus.kInfeasible:
        return Solution(choice=(), cost=math.inf, bound=math.inf, status="infeasible")
    info = solver.getInfo()
    optimal = status == highspy.HighsModelStatus.kOptimal
    if not optimal and status != highspy.HighsModelStatus.kTimeLimit:
        raise SolverError(f"HiGHS stopped with {solver.modelStatusToString(status)}")
    values = np.array(solver.getSolution().col_value)
    if values.size:
        found = tuple(
            int(np.argmax(values[first : first + len(costs)]))
            for first, costs in zip(nodes, problem.costs, strict=True)
        )
        if is_feasible(problem, found) and (
            best is None or objective(problem, found) < objective(problem, best)
        ):
            best = found
    bound = float(info.mip_dual_bound) / scale
    if best is None:
        return Solution(choice=(), cost=math.inf, bound=bound, status="time limit")
    cost = objective(problem, best)
    if optimal:
        bound = cost
    bound = max(min(bound, cost), 0.0) if math.isfinite(bound) else 0.0
    return Solution(
        choice=best,
        cost=cost,
        bound=bound,
        status="optimal" if optimal else "time limit",
    )


def _reference(problem: Problem) -> float:
    """A size for the objective when no choice is known: greedy, ignoring rows."""
    choice = tuple(int(np.argmin(c)) for c in problem.costs)
    total = sum(float(c.min()) for c in problem.costs)
    for pair in problem.pairs:
        cost = float(pair.cost[choice[pair.u], choice[pair.v]])
        total += cost if math.isfinite(cost) else 0.0
    return total


def _columns(
    problem: Problem, nodes: list[int], pairs: list[int], choice: tuple[int, ...], count: int
) -> np.ndarray:
    values = np.zeros(count)
    for first, i in zip(nodes, choice, strict=True):
        values[first + i] = 1.0
    for first, pair in zip(pairs, problem.pairs, strict=True):
        values[first + choice[pair.u] * pair.cost.shape[1] + choice[pair.v]] = 1.0
    return values
