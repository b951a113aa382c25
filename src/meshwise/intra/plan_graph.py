"""Plans one graph on one mesh: network, problem, solver, memory, decision."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwise.cluster.mesh import LogicalMesh
from meshwise.errors import InfeasibleError, SolverError
from meshwise.graph.graph import Graph
from meshwise.intra.check import check_solution
from meshwise.intra.expand import expand
from meshwise.intra.memory import Peak, peak
from meshwise.intra.memory_rows import MemoryRows
from meshwise.intra.network import Network, build_network
from meshwise.intra.options import IntraOptions, IntraResult
from meshwise.intra.problem import Problem, Row, Solution, row_weight
from meshwise.intra.propagate import propagate
from meshwise.intra.solve import solve
from meshwise.intra.ties import Ties, find_ties, tied_problem, tied_row, untied
from meshwise.plan.decision import GraphDecision

# Above this many nodes equal layers are planned equally.
_TIE_NODES = 400
# Rows are added where a plan exceeds the limit; each round cuts off the plan before it.
_ROUNDS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """A choice per class with its plan."""

    solution: Solution
    decision: GraphDecision
    peak: Peak


def _fitting(
    network: Network, ties: Ties, problem: Problem, options: IntraOptions, deadline: float
) -> _Answer:
    """Solve, look at the true memory, add the rows that it violates, and solve again."""
    limit = options.memory_bytes
    rows: list[Row] = []
    writer: MemoryRows | None = None
    last: Peak | None = None
    for _ in range(_ROUNDS):
        full = Problem(costs=problem.costs, pairs=problem.pairs, rows=tuple(rows))
        found = solve(full, time_limit_s=deadline - time.monotonic(), seed=options.seed)
        if not found.choice:
            raise infeasible(network.graph, limit, last, found)
        check_solution(full, found)
        decision = expand(network, ties.spread(found.choice))
        high = peak(network.graph, decision, network.mesh)
        if limit is None or high.num_bytes <= limit:
            return _Answer(solution=found, decision=decision, peak=high)
        last = high
        writer = writer or MemoryRows(network)
        row = tied_row(writer.row(high.time, float(limit)), ties)
        if row_weight(row, found.choice) <= limit:
            row = _cut(row, full, found.choice)
        rows.append(row)
    raise SolverError(f"no plan that fits into memory was found in {_ROUNDS} rounds")


def _cut(row: Row, problem: Problem, choice: Sequence[int]) -> Row:
    """Forbid exactly this choice of the nodes that are live in a row."""
    nodes = sorted({u for u, _ in row.nodes} | {u for p in row.pairs for u in p[:2]})
    weights: list[tuple[int, np.ndarray]] = []
    for u in nodes:
        one = np.zeros(len(problem.costs[u]))
        one[choice[u]] = 1.0
        weights.append((u, one))
    return Row(nodes=tuple(weights), limit=len(nodes) - 1, name=f"not again: {row.name}")


def infeasible(
    graph: Graph, limit: int | None, last: Peak | None, found: Solution
) -> InfeasibleError:
    """The error that names what is largest and what helps."""
    if limit is None or last is None:
        return InfeasibleError(
            "no plan satisfies the pins and restrictions: loosen a pin, or allow more collectives"
        )
    why = "no plan fits" if found.status == "infeasible" else "no plan that fits was found in time"
    largest = "; ".join(
        f"{b.role} of {b.num_bytes:,} bytes from {b.where or 'an input'}" for b in last.buffers[:5]
    )
    return InfeasibleError(
        f"{why} into {limit:,} bytes per device; the last plan tried peaks at "
        f"{last.num_bytes:,} bytes. Largest there: {largest}. Use more devices, more micro-batches, "
        "rematerialisation, a smaller batch, or raise memory_bytes"
    )


def plan_graph(
    graph: Graph,
    mesh: LogicalMesh,
    options: IntraOptions,
    *,
    incumbents: Sequence[IntraResult] = (),
) -> IntraResult:
    """Find the cheapest plan of `graph` on `mesh`.

    Args:
        graph: The graph.
        mesh: Where it runs.
        options: Objective, limits and restrictions.
        incumbents: Plans of the same graph, mesh and objective; the best of them is returned if
            it is cheaper than what is found.

    Raises:
        InfeasibleError: no plan satisfies the restrictions and fits into memory.
        SolverError: the solver failed.
    """
    start = time.monotonic()
    network = build_network(graph, mesh, options)
    large = len(network.nodes) > _TIE_NODES if options.tie is None else options.tie
    ties = find_ties(network) if large else untied(network)
    problem = tied_problem(network, ties)
    if options.restriction.greedy:
        ties = untied(network)
        choice = propagate(network)
        cost = sum(float(n.cost_s[c]) for n, c in zip(network.nodes, choice, strict=True))
        cost += sum(float(e.cost_s[choice[e.source], choice[e.target]]) for e in network.edges)
        found = Solution(choice=choice, cost=cost, bound=cost, status="greedy", num_left=0)
        decision = expand(network, choice)
        high = peak(graph, decision, mesh)
        if options.memory_bytes is not None and high.num_bytes > options.memory_bytes:
            raise infeasible(graph, options.memory_bytes, high, found)
        answer = _Answer(solution=found, decision=decision, peak=high)
    else:
        answer = _fitting(network, ties, problem, options, start + options.time_limit_s)
    cost, bound = answer.solution.cost, answer.solution.bound
    result = IntraResult(
        decision=answer.decision,
        objective_s=cost,
        bound_s=bound,
        gap=_gap(cost, bound),
        space="equal layers planned equally" if large else "every layer planned freely",
        status=answer.solution.status,
        wall_s=time.monotonic() - start,
        peak_bytes=answer.peak.num_bytes,
        num_nodes=len(network.nodes),
        num_left=answer.solution.num_left,
    )
    return _best(result, incumbents, options.memory_bytes)


def _gap(cost: float, bound: float) -> float:
    gap = (cost - bound) / cost if cost > 0 else 0.0
    return max(gap, 0.0) if math.isfinite(gap) else 0.0


def _best(
    result: IntraResult, incumbents: Sequence[IntraResult], limit: int | None
) -> IntraResult:
    """The cheapest of the result and the incumbents that fit."""
    for other in incumbents:
        fits = limit is None or other.peak_bytes <= limit
        if fits and other.objective_s < result.objective_s * (1 - 1e-12):
            result = IntraResult(
                decision=other.decision,
                objective_s=other.objective_s,
                bound_s=min(result.bound_s, other.objective_s),
                gap=_gap(other.objective_s, min(result.bound_s, other.objective_s)),
                space=result.space,
                status=result.status,
                wall_s=result.wall_s,
                peak_bytes=other.peak_bytes,
                num_nodes=result.num_nodes,
                num_left=result.num_left,
            )
    return result
