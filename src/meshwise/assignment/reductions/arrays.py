"""State of a problem while it shrinks, as arrays for compiled kernels.

Edges hang on their nodes by half-edges: edge e has 2e at its node u and 2e + 1 at its node v,
linked in lists.  Usage hangs on nodes as items: an interval with the bytes of each choice, also
linked.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from meshwise.kernels.arrays import Bools, Flag, Floats, Ints, Ints32
from meshwise.kernels.compiler import NONE, light_kernel, part

INF = np.inf
_Element = TypeVar("_Element", bound=np.generic)

# Positions in `Work.counters`.
NUM_QUEUED, MATRICES_USED, USAGES_USED, LOG_USED, INFEASIBLE = range(5)
# Values of `Work.stop`.
CUT, END = 1, 2


class Nodes(NamedTuple):
    """Nodes and what is left of their choices.

    Attributes:
        size: Choices left.
        original_size: Choices at the beginning.
        start: Where the choices of a node begin in `cost` and `original`.
        cost: Cost of the choices left; infinite for those about to go.
        original: Numbers of the choices left as they were at the beginning.
        alive: Whether the node still decides.
        locked: Whether the node must stay, with all choices that are possible.
        first_half: First half-edge, -1 for none.
        first_item: First usage item, -1 for none.
    """

    size: Ints
    original_size: Ints
    start: Ints
    cost: Floats
    original: Ints32
    alive: Bools
    locked: Bools
    first_half: Ints
    first_item: Ints


class Edges(NamedTuple):
    """Edges with their matrices, row-major over (choices of u, choices of v).

    Attributes:
        u: First node.
        v: Second node.
        start: Where the matrix begins in `ReductionBuffers.matrices`.
        room: Entries that may be written there.
        alive: Whether the edge is still there.
        next_half: Links of the half-edges.
    """

    u: Ints
    v: Ints
    start: Ints
    room: Ints
    alive: Bools
    next_half: Ints


class Items(NamedTuple):
    """Usage of a node over an interval of time.

    Attributes:
        start: Where the bytes of its choices begin in `ReductionBuffers.usages`.
        low: First time.
        high: First time after it.
        next_item: Next item of the node, -1 for none.
    """

    start: Ints
    low: Ints
    high: Ints
    next_item: Ints


class ReductionBuffers(NamedTuple):
    """What grows.

    Attributes:
        matrices: Costs of edges.
        usages: Bytes of items.
        log: How to find the choices of nodes that went (`expansion`).
    """

    matrices: Floats
    usages: Ints
    log: Ints32


class ReductionWork(NamedTuple):
    """Nodes to look at, and scratch.

    Attributes:
        queue: Ring of nodes.
        queued: Whether a node waits in it.
        counters: See the constants above.
        mark: Scratch of one entry for each node, -1 outside of a kernel.
        base: Bytes that are used whatever is chosen, as differences over time.
        stop: One number that other threads may set: `CUT` leaves the problem as it is but for what
            is impossible, `END` without any result.
    """

    queue: Ints
    queued: Bools
    counters: Ints
    mark: Ints
    base: Ints
    stop: Flag


class ReductionState(NamedTuple):
    """A problem while it shrinks.

    Attributes:
        nodes: Nodes and what is left of their choices.
        edges: Edges with their matrices.
        items: Usage of nodes.
        buffers: What grows.
        work: Nodes to look at, and scratch.
    """

    nodes: Nodes
    edges: Edges
    items: Items
    buffers: ReductionBuffers
    work: ReductionWork


@part
def least_in(values: Ints | Floats, low: int, high: int) -> Any:
    """Return the least of the values from `low` to `high - 1`, of which there is at least one."""
    least = values[low]
    for k in range(low + 1, high):
        if values[k] < least:
            least = values[k]
    return least


@part
def push(i: int, work: ReductionWork) -> None:
    """Let node `i` be looked at again."""
    if not work.queued[i]:
        work.queued[i] = True
        work.queue[work.counters[NUM_QUEUED] % work.queue.size] = i
        work.counters[NUM_QUEUED] += 1


@part
def neighbour(half: int, edges: Edges) -> int:
    """Return the node at the other end of a half-edge."""
    return edges.v[half >> 1] if half & 1 == 0 else edges.u[half >> 1]


@part
def degree(i: int, nodes: Nodes, edges: Edges) -> int:
    """Return edges of a node; half-edges of dead ones are unlinked."""
    count = 0
    before = NONE
    half: int = nodes.first_half[i]
    while half >= 0:
        after: int = edges.next_half[half]
        if edges.alive[half >> 1]:
            count += 1
            before = half
        elif before < 0:
            nodes.first_half[i] = after
        else:
            edges.next_half[before] = after
        half = after
    return count


@part
def link(half: int, i: int, nodes: Nodes, edges: Edges) -> None:
    """Hang a half-edge on a node."""
    edges.next_half[half] = nodes.first_half[i]
    nodes.first_half[i] = half


@light_kernel
def link_all(nodes: Nodes, edges: Edges) -> None:
    """Hang every edge on its nodes."""
    for e in range(edges.u.size):
        link(2 * e, edges.u[e], nodes, edges)
        link(2 * e + 1, edges.v[e], nodes, edges)


@part
def grown(array: npt.NDArray[_Element], need: int) -> npt.NDArray[_Element]:
    """Return the array, or a longer copy if it has less than `need` entries."""
    if need <= array.size:
        return array
    longer = np.empty(need if need > array.size * 2 else array.size * 2, array.dtype)
    for k in range(array.size):
        longer[k] = array[k]
    return longer


@part
def with_room(
    need: int, nodes: Nodes, edges: Edges, buffers: ReductionBuffers, work: ReductionWork
) -> ReductionBuffers:
    """Return buffers with space for `need` more matrix entries; live matrices may move together."""
    used = work.counters[MATRICES_USED]
    if used + need <= buffers.matrices.size:
        return buffers
    live = 0
    for e in range(edges.u.size):
        if edges.alive[e]:
            live += nodes.size[edges.u[e]] * nodes.size[edges.v[e]]
    size = 4 * live + need
    moved = np.empty(size if size > buffers.matrices.size else buffers.matrices.size, np.float64)
    top = 0
    for e in range(edges.u.size):
        if edges.alive[e]:
            count = int(nodes.size[edges.u[e]] * nodes.size[edges.v[e]])
            start: int = edges.start[e]
            for k in range(count):
                moved[top + k] = buffers.matrices[start + k]
            edges.start[e] = top
            edges.room[e] = count
            top += count
    work.counters[MATRICES_USED] = top
    return ReductionBuffers(moved, buffers.usages, buffers.log)


@part
def with_log(need: int, buffers: ReductionBuffers, work: ReductionWork) -> ReductionBuffers:
    """Return buffers with space for `need` more entries of the log."""
    log = grown(buffers.log, work.counters[LOG_USED] + need)
    return ReductionBuffers(buffers.matrices, buffers.usages, log)
