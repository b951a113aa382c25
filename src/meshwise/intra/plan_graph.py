"""Plans one graph on one mesh: network, problem, solver, memory, decision.

A plan is made in two steps, so that several meshes or methods can be compared: `prepared` finds
the cheapest choice without a limit of memory and with it a bound, `planned` a plan that fits.
"""

from __future__ import annotations

import dataclasses
import math
import re
import time
from dataclasses import dataclass

from meshwise.assignment.files.dump import dump_problem
from meshwise.assignment.problem import Solution
from meshwise.assignment.solve import solve
from meshwise.assignment.validity import check_solution
from meshwise.cluster.mesh import LogicalMesh
from meshwise.errors import SolverError
from meshwise.graph.graph import Graph
from meshwise.intra.evaluators import Evaluators
from meshwise.intra.limit.fit import fit
from meshwise.intra.limit.judged import Judge, JudgedChoice
from meshwise.intra.limit.refusal import no_choice, not_found, too_large
from meshwise.intra.network import LayoutNetwork, build_network
from meshwise.intra.options import IntraOptions, IntraResult
from meshwise.intra.propagate import propagate
from meshwise.intra.regions import Region
from meshwise.intra.ties import find_ties, tied_problem, untied

# Above this many nodes equal layers are planned equally (`intra/ties`). The first and the last ones
# stand beside other operators, so that they may have layouts of their own.
_TIE_NODES = 400
TIED = "equal layers planned equally (the first and last may differ)"
FREE = "every layer planned freely"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A graph on a mesh with its cheapest choice, whatever that holds.

    Attributes:
        judge: The problem, and what searches in it share.
        free: The cheapest choice, with its bound.
        options: What was asked.
        space: For which plans the bound holds.
        wall_s: Seconds that this took.
    """

    judge: Judge
    free: Solution
    options: IntraOptions
    space: str
    wall_s: float

    @property
    def bound_s(self) -> float:
        """No plan costs less, whatever the memory; a greedy method has one plan only."""
        return self.free.bound


def prepared(
    graph: Graph,
    mesh: LogicalMesh,
    options: IntraOptions,
    parts: tuple[Region, ...] | None = None,
    evaluators: Evaluators | None = None,
) -> Prepared:
    """Find the cheapest choice without a limit of memory.

    Args:
        graph: The graph.
        mesh: Where it runs.
        options: Objective, limits and restrictions.
        parts: The regions of the graph if they are known.
        evaluators: That know what was computed for other meshes and restrictions.

    Raises:
        InfeasibleError: no plan satisfies the restrictions.
        SolverError: the solver failed.
    """
    start = time.monotonic()
    network = build_network(graph, mesh, options, parts, evaluators)
    large = len(network.nodes) > _TIE_NODES
    is_greedy = options.restriction.greedy
    ties = find_ties(network) if large and not is_greedy else untied(network)
    problem = tied_problem(network, ties)
    judge = Judge(
        network=network,
        ties=ties,
        problem=problem,
        deadline=start + options.time_limit_s,
        seed=options.seed,
    )
    if is_greedy:
        free = _propagated(network)
    else:
        free = _solved(judge, options)
        if not free.choice and network.nodes:
            proved = free.status == "infeasible"
            raise no_choice() if proved else not_found(options.time_limit_s)
        check_solution(problem, free)
    return Prepared(
        judge=judge,
        free=free,
        options=options,
        space=TIED if large else FREE,
        wall_s=time.monotonic() - start,
    )


def _solved(judge: Judge, options: IntraOptions) -> Solution:
    """The cheapest choice; its problem is kept as a file if that is asked for."""
    try:
        found = solve(judge.problem, time_limit_s=judge.seconds_left, seed=options.seed)
    except SolverError:
        _dump(judge, None, options)
        raise
    _dump(judge, found.cost if found.choice else None, options)
    return found


def _dump(judge: Judge, cost: float | None, options: IntraOptions) -> None:
    if options.dump_ilp is None:
        return
    name = re.sub(r"[^A-Za-z0-9]+", "-", options.restriction.name).strip("-") or "intra"
    what = f"{name}-{'x'.join(map(str, judge.network.mesh.sizes))}"
    dump_problem(judge.problem, cost, options.dump_ilp, what)


def _propagated(network: LayoutNetwork) -> Solution:
    """The choice of sharding propagation."""
    choice = propagate(network)
    cost = sum(float(n.cost_s[c]) for n, c in zip(network.nodes, choice, strict=True))
    cost += sum(float(e.cost_s[choice[e.source], choice[e.target]]) for e in network.edges)
    return Solution(choice=choice, cost=cost, bound=cost, status="greedy")


def free_answer(made: Prepared) -> JudgedChoice:
    """Return the cheapest choice as a plan with its peak.

    Args:
        made: A graph on a mesh, prepared.
    """
    decision, high = made.judge.of_choice(made.free.choice)
    return JudgedChoice(solution=made.free, decision=decision, peak=high)


def planned(
    made: Prepared,
    free: JudgedChoice | None = None,
    *,
    below_s: float = math.inf,
    smallest_bytes: float = math.inf,
) -> IntraResult:
    """The cheapest plan that was found to fit.

    Args:
        made: What was prepared.
        free: Its free answer, if it is known.
        below_s: A plan of another search costs so much and fits: little is done for one that
            hardly is cheaper.
        smallest_bytes: The smallest plan of other searches has such a peak, which does not fit.

    Raises:
        TooLargeError: no plan was found that fits.
        SolverError: the solver failed.
    """
    start = time.monotonic()
    judge, limit = made.judge, made.options.memory_bytes
    answer = free or free_answer(made)
    if limit is not None and answer.num_bytes > limit:
        if made.options.restriction.greedy:
            raise too_large(limit, answer.peak, is_proved=False)
        # Other graphs and meshes may have been planned in between.
        late = start + made.options.time_limit_s - made.wall_s
        judge = dataclasses.replace(judge, deadline=late)
        answer = fit(judge, answer, limit=limit, below_s=below_s, smallest_bytes=smallest_bytes)
        check_solution(judge.problem, answer.solution)
    cost, bound = answer.solution.cost, answer.solution.bound
    return IntraResult(
        decision=answer.decision,
        objective_s=cost,
        bound_s=bound,
        gap=relative_gap(cost, bound),
        space=made.space,
        status=answer.solution.status,
        peak_bytes=answer.num_bytes,
    )


def plan_graph(
    graph: Graph,
    mesh: LogicalMesh,
    options: IntraOptions,
    *,
    parts: tuple[Region, ...] | None = None,
) -> IntraResult:
    """Find the cheapest plan of `graph` on `mesh`.

    Args:
        graph: The graph.
        mesh: Where it runs.
        options: Objective, limits and restrictions.
        parts: The regions of the graph if they are known.

    Raises:
        InfeasibleError: no plan satisfies the restrictions and fits into memory.
        SolverError: the solver failed.
    """
    return planned(prepared(graph, mesh, options, parts))


def relative_gap(cost: float, bound: float) -> float:
    """Return (cost - bound) / cost.

    Args:
        cost: What a plan costs.
        bound: No plan costs less.

    Returns:
        The gap; infinite without a bound, 0 for a plan that costs nothing.
    """
    gap = (cost - bound) / cost if cost > 0 else 0.0
    return max(gap, 0.0) if math.isfinite(gap) else math.inf
