"""Small problems whole, without kernels: to compile those takes longer than to do without them."""

from __future__ import annotations

import numpy as np

from meshwise.assignment.exact.highs import HighsEffort
from meshwise.assignment.exact.integer_program import ExactAnswer, solve_exactly
from meshwise.assignment.instance import INFINITE_COST, Instance
from meshwise.assignment.network import Network, network_of
from meshwise.errors import SolverError
from meshwise.kernels.arrays import Flag, Ints

# Costs of choices and of pairs of choices that a small problem has at most.
SMALL_COLUMNS = 4000
_FIRST_ROWS = 20
_TRIES = 3


def is_small(instance: Instance, columns: int = SMALL_COLUMNS) -> bool:
    """Return whether the integer program of a problem has at most so many columns."""
    return len(instance.costs) + len(instance.edge_costs) <= columns


def solve_small(instance: Instance, effort: HighsEffort, stop: Flag | None = None) -> ExactAnswer:
    """Give a problem to the exact engine as it is.

    Args:
        instance: A small problem.
        effort: What ends HiGHS.
        stop: One flag; the search ends when another thread sets it to 1.

    Returns:
        What is known then.
    """
    if not instance.num_nodes:
        return ExactAnswer(choice=np.zeros(0, np.int64), is_proved=True)
    for values, first in (
        (instance.costs, instance.first_choice),
        (instance.edge_costs, instance.first_entry),
    ):
        if len(first) > 1 and (
            np.diff(first).min() == 0
            or np.minimum.reduceat(values, first[:-1]).max() >= INFINITE_COST
        ):
            return ExactAnswer(choice=None, is_proved=True)
    network = network_of(instance)
    rows = np.argsort(-_most_usage(network), kind="stable")[:_FIRST_ROWS].tolist()
    answer = ExactAnswer(choice=None, is_proved=False)
    cutoff = np.inf
    for _ in range(_TRIES):
        try:
            found = solve_exactly(network, cutoff=cutoff, first_rows=rows, effort=effort, stop=stop)
        except SolverError:
            break
        choice = found.choice if found.choice is not None else answer.choice
        answer = ExactAnswer(choice=choice, is_proved=found.is_proved)
        effort = effort.less(found.num_looks)
        if found.is_proved or found.choice is None:
            break
        # Fewer costs are left to scale: the engine may prove now what it found.
        cutoff = found.cost
    return answer


def _most_usage(network: Network) -> Ints:
    """Return bytes that the choices use at most in each row."""
    change = np.zeros(len(network.capacity) + 1, np.int64)
    if len(network.item_low):
        most = np.maximum.reduceat(network.usage, network.first_choice[:-1])
        used = most[np.diff(network.first_item) > 0]
        np.add.at(change, network.item_low, used)
        np.subtract.at(change, network.item_high, used)
    return np.cumsum(change)[:-1]
