"""A network without rows: messages while the bound rises well, and choices read off on the way.

Costs may be of any size, as seconds are.  Choices that would lift the bound above the cost of a
known solution are in no better one, and go.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwise.assignment.bounds.exact_bound import choices_within
from meshwise.assignment.bounds.messages import Messages, cost_of, follow, no_messages, sweep
from meshwise.assignment.network import Network
from meshwise.assignment.search.descent import improve_in_place
from meshwise.kernels.compiler import BACKWARD, FORWARD, light_kernel

Integers = NDArray[np.int64]

# A choice is dropped only if it is worse than the known one by more than rounding.
_SLACK = 1e-9
# A rise of the bound below this share of it counts as none.
STALL = 1e-6
# So does one below this share of the distance to the best choice known.
_SLOW = 1e-2
# A choice is read off after so many passes.
_READ_EVERY = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaxation:
    """What messages found.

    Attributes:
        network: The problem.
        messages: Where the cost lies, after a backward sweep.
        proved: The bound of these messages.
        bound: No choice costs less, nor than `cost`.
        choice: The best choice that was met; None if each one met takes what is forbidden.
        cost: Its cost; infinite without one.
    """

    network: Network
    messages: Messages
    proved: float
    bound: float
    choice: Integers | None
    cost: float

    def choices_left(self) -> NDArray[np.bool_]:
        """Return which choices of the network may be in a better solution; moves the messages."""
        keep = choices_within(
            self.network, self.messages, np.zeros(0), self.proved, self.cost, step=0.0
        )
        if self.choice is not None:
            keep[self.network.first_choice[:-1] + self.choice] = True
        return keep


def relax(
    network: Network, known: Integers | None, *, passes: int, messages: Messages | None = None
) -> Relaxation:
    """Raise the bound by passes forward and backward over the nodes.

    Args:
        network: A network without rows, reduced so that no choice is impossible.
        known: A choice to start from.
        passes: Largest number of passes.
        messages: Messages to start from, which change; None: all cost at the nodes.

    Returns:
        The bound, and the best choice that was met.
    """
    held = no_messages(network) if messages is None else messages
    best, cost = known, np.inf if known is None else float(cost_of(network, known))
    number, bound = 0, -np.inf
    while number < passes:
        number, bound, is_settled, is_read = _raise(number, passes, bound, cost, network, held)
        if is_read:
            choice = np.zeros(len(network.size), np.int64)
            follow(network, held, choice)
            improve_in_place(network, choice)
            found = float(cost_of(network, choice))
            if found < cost:
                best, cost = choice, found
        if is_settled or bound >= cost * (1 - _SLACK):
            break
    return Relaxation(
        network=network,
        messages=held,
        proved=bound,
        bound=min(bound, cost),
        choice=best,
        cost=cost,
    )


@light_kernel
def _raise(
    number: int, passes: int, bound: float, cost: float, network: Network, held: Messages
) -> tuple[int, float, bool, bool]:
    """Pass messages until a choice is to be read off, or the bound has reached the cost.

    Args:
        number: Passes so far.
        passes: Largest number of passes.
        bound: What they proved.
        cost: Of the best choice known.
        network: A network without rows.
        held: Its messages; changed.

    Returns:
        Passes now, the bound, whether it is settled, and whether a choice is to be read off.
    """
    for n in range(number, passes):
        before = bound
        sweep(FORWARD, network, held)
        bound = sweep(BACKWARD, network, held) + network.constant
        rise = bound - before
        is_settled = rise <= STALL * abs(bound) or rise <= _SLOW * (cost - bound) < np.inf
        if n % _READ_EVERY == 0 or is_settled or n == passes - 1:
            return n + 1, bound, is_settled, True
        if bound >= cost * (1 - _SLACK):
            return n + 1, bound, False, False
    return passes, bound, False, False


@light_kernel
def _settle(network: Network, messages: Messages, passes: int) -> float:
    bound = -np.inf
    for _ in range(passes):
        sweep(FORWARD, network, messages)
        before, bound = bound, sweep(BACKWARD, network, messages) + network.constant
        if bound - before <= STALL * abs(bound):
            break
    return bound


def settle(network: Network, messages: Messages, passes: int) -> float:
    """Pass messages forward and backward until the bound stalls.

    Args:
        network: A network without rows.
        messages: Its messages; changed.
        passes: Largest number of passes.

    Returns:
        The bound that the messages prove.
    """
    return float(_settle(network, messages, passes))
