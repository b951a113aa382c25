"""Boxes divided among senders and in time, so that no port idles that all wait for.

How many bytes of each box each host sends is a linear program: the busiest sender shall have as
little as possible.  What is left is an open shop with interruptions.  Where any two boxes have the
same receivers or no common one, all with the same receivers are one machine, and the best schedule
ends when the busiest port does: matchings of senders and machines, one after another, each of which
has every port that is busy to the end.

Source: Gonzalez and Sahni 1976, "Open shop scheduling to minimize finish time", for the schedule;
docs/facts.md section 3 for the ports.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import optimize as scipy_optimize  # pyright: ignore[reportMissingTypeStubs]

from meshwise.resharding.cross_mesh.host_tasks import HostTask

optimize: Any = scipy_optimize
# Less than this part of all bytes is rounding.
_ROUNDING = 1e-9


class Part(NamedTuple):
    """A part of a box.

    Attributes:
        task: Number of the box.
        sender: Host that sends it.
        num_bytes: How much.
    """

    task: int
    sender: int
    num_bytes: float


def shares(tasks: Sequence[HostTask]) -> tuple[tuple[Part, ...], float]:
    """Return how many bytes of each box each host sends.

    Returns:
        The parts, and the bytes of the busiest sender: no division has less.

    Raises:
        ArithmeticError: the linear program was not solved.
    """
    classes = sorted({task.senders for task in tasks})
    load = {c: math.fsum(t.num_bytes for t in tasks if t.senders == c) for c in classes}
    hosts = sorted({host for c in classes for host in c})
    columns = [(c, host) for c in classes for host in c]
    total = math.fsum(load.values())
    if not total:
        return (), 0.0
    # Bytes of each class from each host, in parts of all; last the load of the busiest host.
    equal = np.zeros((len(classes), len(columns) + 1))
    below = np.zeros((len(hosts), len(columns) + 1))
    for n, (c, host) in enumerate(columns):
        equal[classes.index(c), n] = 1.0
        below[hosts.index(host), n] = 1.0
    below[:, -1] = -1.0
    cost = np.zeros(len(columns) + 1)
    cost[-1] = 1.0
    wanted = [load[c] / total for c in classes]
    solved = optimize.linprog(cost, below, np.zeros(len(hosts)), equal, wanted, method="highs")
    if solved.status:
        raise ArithmeticError(f"shares of {len(tasks)} boxes among {len(hosts)} hosts: {solved}")
    found: NDArray[np.float64] = solved.x
    given = {column: found[n] * total for n, column in enumerate(columns)}
    return tuple(_dealt(tasks, given, total)), float(found[-1]) * total


def _dealt(
    tasks: Sequence[HostTask], given: dict[tuple[tuple[int, ...], int], float], total: float
) -> list[Part]:
    """Return the shares of classes as parts of boxes, box after box."""
    tiny = _ROUNDING * total
    parts: list[Part] = []
    for number, task in enumerate(tasks):
        left = task.num_bytes
        for host in task.senders:
            taken = min(left, given[task.senders, host])
            if host == task.senders[-1]:
                taken = left
            if taken > tiny:
                parts.append(Part(number, host, taken))
                given[task.senders, host] -= taken
                left -= taken
    return parts


def is_partition(tasks: Sequence[HostTask]) -> bool:
    """Return whether any two boxes have the same receivers or no common one."""
    sets = {task.receivers for task in tasks}
    return sum(map(len, sets)) == len({host for hosts in sets for host in hosts})


def open_shop(tasks: Sequence[HostTask], parts: Sequence[Part]) -> list[Part]:
    """Return parts cut further, in an order in which the busiest port never waits.

    Args:
        tasks: The boxes; their receivers are a partition.
        parts: Of the boxes.
    """
    machines = sorted({task.receivers for task in tasks})
    senders = sorted({part.sender for part in parts})
    size = len(machines) + len(senders)
    work = np.zeros((size, size))
    queues: dict[tuple[int, int], list[Part]] = {}
    for part in parts:
        at = senders.index(part.sender), machines.index(tasks[part.task].receivers)
        work[at] += part.num_bytes
        queues.setdefault(at, []).append(part)
    most = float(max(work.sum(0).max(), work.sum(1).max()))
    _fill(work, len(senders), len(machines), most)
    found: list[Part] = []
    tiny = _ROUNDING * most
    while work.max() > tiny:
        rows, columns = optimize.linear_sum_assignment(np.where(work > tiny, 0, 1))
        step = float(min(x for x in work[rows, columns] if x > tiny))
        for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
            work[row, column] = max(work[row, column] - step, 0.0)
            if (row, column) in queues:
                found += _taken(queues[row, column], step, tiny)
    return found


def _fill(work: NDArray[np.float64], senders: int, machines: int, most: float) -> None:
    """Add idle time as work, so that every row and column has `most`."""
    rows = most - work[:senders, :machines].sum(1)
    columns = most - work[:senders, :machines].sum(0)
    work[:senders, machines:] = np.diag(rows)
    work[senders:, :machines] = np.diag(columns)
    work[senders:, machines:] = work[:senders, :machines].T


def _taken(queue: list[Part], num_bytes: float, tiny: float) -> list[Part]:
    """Take the first bytes of a queue."""
    found: list[Part] = []
    while queue and num_bytes > tiny:
        part = queue.pop(0)
        taken = min(part.num_bytes, num_bytes)
        if part.num_bytes - taken > tiny:
            queue.insert(0, part._replace(num_bytes=part.num_bytes - taken))
        else:
            taken = part.num_bytes
        found.append(part._replace(num_bytes=taken))
        num_bytes -= taken
    return found
