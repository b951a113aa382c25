"""Compile every kernel of the solver ahead of time, by running the passes on a small problem."""

from __future__ import annotations

import numpy as np

from meshwise.assignment.bounds.ascent import Ascent
from meshwise.assignment.bounds.exact_bound import choices_within, exact_bound
from meshwise.assignment.bounds.messages import cost_of, room_left, sweep
from meshwise.assignment.bounds.relaxation import relax
from meshwise.assignment.exact.enumeration import enumerate_choices
from meshwise.assignment.instance import Instance
from meshwise.assignment.network import network_of
from meshwise.assignment.problem import PairCost, Problem, Row
from meshwise.assignment.proof.proof import prove
from meshwise.assignment.proof.trials import TrialGoal, probe
from meshwise.assignment.reductions.reduction import (
    reduce_instance,
    reduce_network,
    reduce_problem,
)
from meshwise.assignment.search.component import scratch_for
from meshwise.assignment.search.descent import DescentWithin
from meshwise.assignment.search.forward_checking import find_consistent
from meshwise.assignment.search.neighbourhood import Tries, improve
from meshwise.assignment.search.repair import Repair
from meshwise.assignment.search.room import Placed, room_of
from meshwise.kernels.background import KernelSet

KERNELS = KernelSet(
    package="assignment", module=__name__, parts=("compile_reductions", "compile_search")
)

_NODES = 6
_CHOICES = 3


def compile_reductions() -> None:
    """Compile the reductions."""
    problem = Problem(
        costs=(np.ones(2), np.ones(2)),
        pairs=(PairCost(u=0, v=1, cost=np.eye(2)),),
        rows=(Row(nodes=((0, np.ones(2)),), pairs=((0, 1, np.eye(2)),), limit=2.0),),
    )
    relax(reduce_problem(problem, keep=(0, 1)).network, None, passes=1).choices_left()
    DescentWithin(problem).improved((0, 0))
    reduction = reduce_instance(_made_up())
    network = reduction.network
    reduce_network(network, np.ones(len(network.cost), np.bool_))
    reduction.expand(np.zeros(len(network.size), np.int64))


def compile_bounds() -> None:
    """Compile what bounds a problem, and improves a choice: all that a planner mostly needs."""
    network = network_of(_made_up())
    Ascent.of(network).run(1)
    choice = np.zeros(len(network.size), np.int64)
    cost_of(network, choice)
    room = room_of(room_left(network, choice))
    rng = np.random.default_rng(0)
    improve(Tries(1, _NODES), network, Placed(choice, room), scratch_for(network), rng)


def compile_search() -> None:
    """Compile the bound and the search."""
    compile_bounds()
    network = network_of(_made_up())
    ascent = Ascent.of(network)
    ascent.run(1)
    ascent.restart()
    sweep(True, network, ascent.held)
    bound = sweep(False, network, ascent.held)
    exact_bound(network, ascent.held, ascent.prices)
    keep = choices_within(network, ascent.held, ascent.prices, bound, 0.0)
    enumerate_choices(network, ascent.held, ascent.prices, 0.0)
    prove(network, np.ones(len(network.capacity)), np.inf, stop=np.zeros(1, np.int8))
    above, work = np.zeros(len(network.cost)), np.zeros(1, np.int64)
    probe(network, ascent.held, above, TrialGoal(0.0, 1.0, 0.0), work, keep)
    forbidden = network._replace(matrices=np.full(len(network.matrices), np.inf))
    find_consistent(forbidden, np.zeros(1, np.int8))
    Repair.of(network).run(1, _NODES, np.random.default_rng(0))


def _made_up() -> Instance:
    """Return an instance of which the reductions leave some: all nodes are neighbours."""
    pairs = [[u, v] for u in range(_NODES) for v in range(u)]
    entries = np.arange(len(pairs) * _CHOICES**2)
    return Instance(
        name="made up",
        first_choice=np.arange(_NODES + 1) * _CHOICES,
        costs=np.zeros(_NODES * _CHOICES, np.int64),
        usages=np.tile(np.arange(_CHOICES)[::-1], _NODES),
        intervals=np.tile(np.array([0, 1]), (_NODES, 1)),
        edges=np.array(pairs),
        first_entry=np.arange(len(pairs) + 1) * _CHOICES**2,
        edge_costs=entries * entries % 101,
        limit=_NODES,
    )
