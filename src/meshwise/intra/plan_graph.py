"""Plans one graph on one mesh: network, problem, solver, memory, decision."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence
from functools import partial

from meshwise.cluster.mesh import LogicalMesh
from meshwise.errors import InfeasibleError
from meshwise.graph.graph import Graph
from meshwise.intra.check import check_solution
from meshwise.intra.dump import dump_problem
from meshwise.intra.expand import expand
from meshwise.intra.fit import Answer, fit, infeasible
from meshwise.intra.memory import peak
from meshwise.intra.network import Network, build_network
from meshwise.intra.options import IntraOptions, IntraResult
from meshwise.intra.problem import Problem, Solution
from meshwise.intra.propagate import propagate
from meshwise.intra.regions import Region
from meshwise.intra.solve import Recorder, solve
from meshwise.intra.ties import Ties, find_ties, tied_problem, untied

# Above this many nodes equal layers are planned equally.
_TIE_NODES = 400


def _solved(
    network: Network, ties: Ties, problem: Problem, options: IntraOptions, deadline: float
) -> Answer:
    """The cheapest plan; one that fits if there is a limit."""
    left = deadline - time.monotonic()
    record = _recorder(network.mesh, options)
    found = solve(problem, time_limit_s=left, seed=options.seed, record=record)
    if not found.choice and network.nodes:
        raise infeasible(None, None, proved=found.status == "infeasible")
    check_solution(problem, found)
    decision = expand(network, ties.spread(found.choice))
    high = peak(network.graph, decision, network.mesh)
    free = Answer(solution=found, decision=decision, peak=high)
    limit = options.memory_bytes
    if limit is None or high.num_bytes <= limit:
        return free
    answer = fit(
        network,
        ties,
        problem,
        free,
        limit=limit,
        deadline=deadline,
        seed=options.seed,
        record=record,
    )
    check_solution(problem, answer.solution)
    return answer


def _recorder(mesh: LogicalMesh, options: IntraOptions) -> Recorder | None:
    """What keeps each problem, if that is asked for."""
    if options.dump_ilp is None:
        return None
    name = re.sub(r"[^A-Za-z0-9]+", "-", options.restriction.name).strip("-") or "intra"
    what = f"{name}-{'x'.join(map(str, mesh.sizes))}"
    return partial(dump_problem, folder=options.dump_ilp, what=what)


def _propagated(network: Network, options: IntraOptions) -> Answer:
    """The plan of sharding propagation."""
    choice = propagate(network)
    cost = sum(float(n.cost_s[c]) for n, c in zip(network.nodes, choice, strict=True))
    cost += sum(float(e.cost_s[choice[e.source], choice[e.target]]) for e in network.edges)
    found = Solution(choice=choice, cost=cost, bound=cost, status="greedy", num_left=0)
    decision = expand(network, choice)
    high = peak(network.graph, decision, network.mesh)
    if options.memory_bytes is not None and high.num_bytes > options.memory_bytes:
        raise infeasible(options.memory_bytes, high, proved=False)
    return Answer(solution=found, decision=decision, peak=high)


def plan_graph(
    graph: Graph,
    mesh: LogicalMesh,
    options: IntraOptions,
    *,
    incumbents: Sequence[IntraResult] = (),
    parts: tuple[Region, ...] | None = None,
) -> IntraResult:
    """Find the cheapest plan of `graph` on `mesh`.

    Args:
        graph: The graph.
        mesh: Where it runs.
        options: Objective, limits and restrictions.
        incumbents: Plans of the same graph, mesh and objective; the best of them is returned if
            it is cheaper than what is found.
        parts: The regions of the graph if they are known.

    Raises:
        InfeasibleError: no plan satisfies the restrictions and fits into memory.
        SolverError: the solver failed.
    """
    start = time.monotonic()
    network = build_network(graph, mesh, options, parts)
    large = len(network.nodes) > _TIE_NODES if options.tie is None else options.tie
    ties = find_ties(network) if large else untied(network)
    if options.restriction.greedy:
        answer = _propagated(network, options)
    else:
        problem = tied_problem(network, ties)
        deadline = start + options.time_limit_s
        try:
            answer = _solved(network, ties, problem, options, deadline)
        except InfeasibleError:
            fitting = [r for r in incumbents if r.peak_bytes <= (options.memory_bytes or 0)]
            if not fitting:
                raise
            return min(fitting, key=lambda r: r.objective_s)
    cost, bound = answer.solution.cost, answer.solution.bound
    result = IntraResult(
        decision=answer.decision,
        objective_s=cost,
        bound_s=bound,
        gap=relative_gap(cost, bound),
        space="equal layers planned equally" if large else "every layer planned freely",
        status=answer.solution.status,
        wall_s=time.monotonic() - start,
        peak_bytes=answer.peak.num_bytes,
        num_nodes=len(network.nodes),
        num_left=answer.solution.num_left,
    )
    return _best(result, incumbents, options.memory_bytes)


def relative_gap(cost: float, bound: float) -> float:
    """(cost - bound) / cost; infinite without a bound, 0 for what costs nothing."""
    gap = (cost - bound) / cost if cost > 0 else 0.0
    return max(gap, 0.0) if math.isfinite(gap) else math.inf


def _best(result: IntraResult, incumbents: Sequence[IntraResult], limit: int | None) -> IntraResult:
    """The cheapest of the result and the incumbents that fit."""
    for other in incumbents:
        fits = limit is None or other.peak_bytes <= limit
        if fits and other.objective_s < result.objective_s * (1 - 1e-12):
            result = IntraResult(
                decision=other.decision,
                objective_s=other.objective_s,
                bound_s=min(result.bound_s, other.objective_s),
                gap=relative_gap(other.objective_s, min(result.bound_s, other.objective_s)),
                space=result.space,
                status=result.status,
                wall_s=result.wall_s,
                peak_bytes=other.peak_bytes,
                num_nodes=result.num_nodes,
                num_left=result.num_left,
            )
    return result
