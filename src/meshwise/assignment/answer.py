"""What the solver says: on its way, and in the end."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np

from meshwise.assignment.instance import Instance, evaluate
from meshwise.errors import SolverError

# Whole numbers below this are exact in floating point, and so are their sums.
_EXACT_FLOATS = 2**53


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What is known while a problem is being solved.

    Attributes:
        seconds: Seconds since the solver began.
        cost: Cost of the best solution; None if none was found yet.
        bound: No solution costs less.
        num_nodes: Nodes that the bound still decides about.
        has_kernels: Whether kernels are compiled; if not, `cost` is of a first solution.
    """

    seconds: float
    cost: int | None
    bound: int
    num_nodes: int
    has_kernels: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the solver says of a problem.

    Attributes:
        choice: One choice for each node; None if no solution was found.
        cost: Exact cost of the choice; None if there is none.
        peak: Most bytes that it uses at any time; None if there is none.
        bound: No solution costs less, in exact arithmetic.
        status: "optimal", "feasible", "infeasible", or "unknown" if none was found in time.
        seconds: Wall time that the solver took.
        seed: Seed of the random numbers.
    """

    choice: tuple[int, ...] | None
    cost: int | None
    peak: int | None
    bound: int
    status: str
    seconds: float
    seed: int

    @classmethod
    def unknown(cls, seed: int) -> Answer:
        """Return the answer to a problem that nothing was done about.

        Args:
            seed: Seed of the random numbers.
        """
        return cls(
            choice=None, cost=None, peak=None, bound=0, status="unknown", seconds=0.0, seed=seed
        )

    @property
    def gap(self) -> float:
        """Return (cost - bound) / cost; infinite without a solution, 0 where both vanish."""
        if self.cost is None:
            return math.inf
        return (self.cost - self.bound) / self.cost if self.cost else 0.0


def checked_answer(
    instance: Instance,
    choice: tuple[int, ...] | None,
    bound: int,
    status: str,
    start: float,
    seed: int,
) -> Answer:
    """Return what is known, after a check in integers.

    Args:
        instance: The problem.
        choice: The best one; None if none was found.
        bound: Bound that the solver proved.
        status: Status where the bound does not meet the cost.
        start: Moment at which the solver began, of `time.monotonic` in seconds.
        seed: Seed of the random numbers.

    Raises:
        SolverError: the choice is no solution.
    """
    seconds = time.monotonic() - start
    if choice is None:
        return Answer(
            choice=None, cost=None, peak=None, bound=bound, status=status, seconds=seconds,
            seed=seed,
        )  # fmt: skip
    found = evaluate(instance, choice)
    if found.cost is None or (instance.limit is not None and found.peak > instance.limit):
        raise SolverError(
            f"the solver's answer does not hold: cost {found.cost}, peak {found.peak} bytes of "
            f"{instance.limit}; please report this problem"
        )
    if found.cost >= _EXACT_FLOATS:
        # Sums of this size were rounded on the way: only the minima prove something.
        bound = _sum_of_minima(instance)
    bound = min(bound, found.cost)
    return Answer(
        choice=choice,
        cost=found.cost,
        peak=found.peak,
        bound=bound,
        status="optimal" if bound == found.cost else status,
        seconds=seconds,
        seed=seed,
    )


def _sum_of_minima(instance: Instance) -> int:
    """Return the least cost of each node and edge, summed exactly."""
    total = 0
    for values, first in (
        (instance.costs, instance.first_choice),
        (instance.edge_costs, instance.first_entry),
    ):
        if len(first) > 1:
            total += sum(np.minimum.reduceat(values, first[:-1]).tolist())
    return total
