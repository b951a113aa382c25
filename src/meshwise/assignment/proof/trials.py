"""Choices that cannot be better, found by trial: what the bound would be if a node took them only.

The choices of a node that are to stay out of a trial are made dearer, not forbidden, so that sweeps
go on from the messages there are.  A bound that comes out above the best cost then holds for all
solutions with one of the others.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwise.assignment.bounds.messages import Messages, sweep
from meshwise.assignment.network import Network
from meshwise.kernels.arrays import Bools, Floats, Ints
from meshwise.kernels.compiler import BACKWARD, FORWARD, ONE, kernel, part


class TrialGoal(NamedTuple):
    """What a trial has to show.

    Attributes:
        most: Value of a better solution at most, in the messages' terms.
        penalty: What is laid on the choices that are not tried.
        hope: Choices that raise the bound by less are not tried.
    """

    most: float
    penalty: float
    hope: float


@part
def _copied(source: Messages, to: Messages) -> None:
    for k in range(source.node.size):
        to.node[k] = source.node[k]
    for k in range(source.at_u.size):
        to.at_u[k] = source.at_u[k]
    for k in range(source.at_v.size):
        to.at_v[k] = source.at_v[k]


@part
def _are_out(
    i: int, tried: Bools, net: Network, held: Messages, trial: Messages, goal: TrialGoal
) -> bool:
    """Return whether no solution with one of the choices tried is worth the goal's most or less."""
    _copied(held, trial)
    for s in range(net.size[i]):
        if not tried[s]:
            trial.node[net.first_choice[i] + s] += goal.penalty
    return sweep(FORWARD, net, trial) > goal.most or sweep(BACKWARD, net, trial) > goal.most


@kernel
def probe(
    net: Network, held: Messages, above: Floats, goal: TrialGoal, work: Ints, keep: Bools
) -> None:
    """Take choices out of `keep` that no solution within the goal has.

    Args:
        net: The network.
        held: Messages after a backward sweep.
        above: By how much each choice raises the bound at least, to try the dear ones first.
        goal: What a trial has to show.
        work: Entries that may be looked at; what is left of them.
        keep: The result.
    """
    trial = Messages(held.node.copy(), held.at_u.copy(), held.at_v.copy(), held.stop)
    cost_of_one = 2 * net.matrices.size + net.cost.size
    for i in range(net.size.size):
        low, size = net.first_choice[i], net.size[i]
        order = np.argsort(above[low : low + size])
        left, hopeless = size, 0 * ONE
        for s in range(low, low + size):
            hopeless += above[s] < goal.hope
        take = left // 2
        while take >= 1 and left > 1 and left > hopeless:
            take = take if take < left - hopeless else left - hopeless
            if held.stop[0] or work[0] <= 0:
                return
            work[0] -= cost_of_one
            take = take if take < left else left - ONE
            tried = np.zeros(size, np.bool_)
            for k in range(left - take, left):
                tried[order[k]] = True
            if _are_out(i, tried, net, held, trial, goal):
                for k in range(left - take, left):
                    keep[low + order[k]] = False
                left -= take
            elif take == 1:
                break
            else:
                take = take // 3 if take >= 3 else ONE
