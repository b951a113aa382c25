"""What is measured: cases of a set size, by strategies with senders and order of algorithms.

Every process of the job makes the same list of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from evaluation.alpacomm.cases import CASES, FLOAT32_BYTES, ONE_TO_MANY, Case
from meshwise.resharding.cross_mesh.cross_mesh_plan import (
    BALANCED,
    BEST,
    DEPTH_FIRST,
    GREEDY,
    NAIVE,
    CrossMeshPlan,
    cross_mesh_plan,
)
from meshwise.resharding.cross_mesh.sending import CHUNK_S
from meshwise.resharding.cross_mesh.strategies import (
    BROADCAST,
    SEND_RECV,
    STRATEGIES,
    best_chunk_bytes,
)
from meshwise.units import MIB

DEVICES_PER_HOST = 4
CASE_NAMES = tuple(case.name for case in (*CASES, *ONE_TO_MANY))
# One device to one other.
PLAIN_CASE = "1 x 1"
ORDERINGS = (NAIVE, BALANCED, DEPTH_FIRST, GREEDY)
# What differs by more is told apart.
DIFFERENCE = 1.1
# The dims of the nine cases divide by eight devices, and in case 6 by three hosts.
_WIDTH = 128


class MeasuredTransfer(NamedTuple):
    """A transfer of a case.

    Attributes:
        case: The case.
        strategy: One of `strategies.STRATEGIES`.
        algorithm: What finds senders and order, one of `cross_mesh_plan.ALGORITHMS`.
    """

    case: Case
    strategy: str
    algorithm: str = BEST

    @property
    def way(self) -> str:
        """The strategy, with the algorithm if it is not the best one."""
        return self.strategy if self.algorithm == BEST else f"{self.strategy}, {self.algorithm}"

    def plan(self, bytes_per_s: float) -> CrossMeshPlan:
        """Return the plan that is carried out.

        Args:
            bytes_per_s: Of a network card, in each direction.
        """
        tasks = self.case.tasks()
        chunk_bytes = best_chunk_bytes(tasks, bytes_per_s, CHUNK_S)
        return cross_mesh_plan(tasks, bytes_per_s, self.strategy, self.algorithm, chunk_bytes)

    def received_bytes(self) -> dict[int, int]:
        """Return the payload that each host receives, by the definition of the strategy."""
        found: dict[int, int] = {}
        for task in self.case.tasks():
            for host, count in zip(task.receivers, task.devices, strict=True):
                copies = count if self.strategy == SEND_RECV else 1
                found[host] = found.get(host, 0) + round(task.num_bytes) * copies
        return found


def sized_case(name: str, mib: int) -> Case:
    """Return a case of another size.

    Args:
        name: One of `CASE_NAMES`.
        mib: The size of its tensor in MiB; case 6 has as near to it as its hosts divide.
    """
    (case,) = (case for case in (*CASES, *ONE_TO_MANY) if case.name == name)
    numbers = mib * MIB // FLOAT32_BYTES
    if len(case.shape) == 1:
        return replace(case, shape=(numbers,))
    rows = 3 * _WIDTH if case.shape[0] % 3 == 0 else _WIDTH
    return replace(case, shape=(rows, _WIDTH, numbers // (rows * _WIDTH)))


def transfers(
    names: Sequence[str], mib: int, strategies: Sequence[str] = tuple(STRATEGIES)
) -> list[MeasuredTransfer]:
    """Return what is measured: all strategies, and orderings where they make a difference.

    Args:
        names: Names of cases.
        mib: The size of each tensor in MiB.
        strategies: The strategies; orderings are measured if a broadcast is among them.
    """
    found: list[MeasuredTransfer] = []
    for name in names:
        case = sized_case(name, mib)
        found += [MeasuredTransfer(case, strategy) for strategy in strategies]
        if BROADCAST in strategies:
            orders = [MeasuredTransfer(case, BROADCAST, algorithm) for algorithm in ORDERINGS]
            spans = [order.plan(1.0).makespan_s for order in orders]
            found += orders if max(spans) > DIFFERENCE * min(spans) else ()
    return found


def num_hosts(case: Case) -> int:
    """Return the hosts of both sides of a case."""
    return case.source[0] + case.destination[0]
