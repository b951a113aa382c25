"""Exact reductions: a smaller problem with the same optimum, and the way back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from meshwise.assignment.instance import Instance
from meshwise.assignment.network import Network, build_network, cost_network, network_of
from meshwise.assignment.problem import Problem
from meshwise.assignment.reductions.arrays import (
    END,
    INFEASIBLE,
    LOG_USED,
    MATRICES_USED,
    NUM_QUEUED,
    USAGES_USED,
    Edges,
    Items,
    Nodes,
    ReductionBuffers,
    ReductionState,
    ReductionWork,
    degree,
    link_all,
    neighbour,
    push,
)
from meshwise.assignment.reductions.choices import (
    compact,
    drop_dominated,
    make_consistent,
    settle_items,
)
from meshwise.assignment.reductions.folding import (
    ALONE,
    OF_ONE,
    absorb,
    eliminate,
    fold_separable,
    follows,
    may_eliminate,
    merge_parallel,
)
from meshwise.assignment.reductions.rows import binding_times, trim_items
from meshwise.kernels.arrays import Bools, Flag, Floats, Ints, Ints32
from meshwise.kernels.compiler import light_kernel, part

# Larger tests of dominance cost more than they save.
_DOMINANCE_CELLS = 1 << 27
_ROUNDS = 20


@part
def _look_at_edges(
    i: int, nodes: Nodes, edges: Edges, items: Items, buffers: ReductionBuffers, work: ReductionWork
) -> tuple[bool, ReductionBuffers]:
    """Fold what can be folded around a node; whether the node or a neighbour was absorbed."""
    half: int = nodes.first_half[i]
    while half >= 0:
        e = half >> 1
        if edges.alive[e]:
            other = neighbour(half, edges)
            compact(other, nodes, edges, items, buffers, work)
            if work.counters[INFEASIBLE]:
                return True, buffers
            if fold_separable(e, nodes, edges, buffers):
                push(other, work)
            else:
                way = follows(e, nodes, edges, buffers)
                if half & 1:
                    way = (way & 1) << 1 | way >> 1
                if nodes.locked[other]:
                    way &= 2
                if nodes.locked[i]:
                    way &= 1
                # Bit 0: the other one follows i; bit 1: i follows it.
                if way == 3:
                    fewer = degree(i, nodes, edges) < degree(other, nodes, edges)
                    way = 2 if fewer else 1
                if way == 1:
                    return True, absorb(half, nodes, edges, items, buffers, work)
                if way == 2:
                    return True, absorb(half ^ 1, nodes, edges, items, buffers, work)
        half = edges.next_half[half]
    return False, buffers


@part
def _drop_impossible(
    i: int, nodes: Nodes, edges: Edges, items: Items, buffers: ReductionBuffers, work: ReductionWork
) -> None:
    """Take out what the edges of a node forbid, here and at its neighbours."""
    degree(i, nodes, edges)
    half: int = nodes.first_half[i]
    while half >= 0:
        lost = make_consistent(half >> 1, nodes, edges, buffers)
        if lost & 1:
            push(edges.u[half >> 1], work)
        if lost & 2:
            push(edges.v[half >> 1], work)
        half = edges.next_half[half]
    compact(i, nodes, edges, items, buffers, work)


@part
def _dominance_cells(i: int, nodes: Nodes, edges: Edges) -> int:
    """Return comparisons that a test of dominance takes."""
    count = 0
    half: int = nodes.first_half[i]
    while half >= 0:
        if edges.alive[half >> 1]:
            count += nodes.size[neighbour(half, edges)]
        half = edges.next_half[half]
    return count * nodes.size[i] ** 2


@partial(light_kernel, compiled_in_s=6.0)
def _run(
    nodes: Nodes, edges: Edges, items: Items, buffers: ReductionBuffers, work: ReductionWork
) -> ReductionBuffers:
    """Look at nodes until none is queued."""
    done = 0
    while done < work.counters[NUM_QUEUED] and not work.counters[INFEASIBLE]:
        i = work.queue[done % work.queue.size]
        done += 1
        work.queued[i] = False
        if not nodes.alive[i]:
            continue
        _drop_impossible(i, nodes, edges, items, buffers, work)
        if work.counters[INFEASIBLE] or work.stop[0] == END:
            break
        if work.stop[0]:
            continue
        settle_items(i, nodes, items, buffers, work)
        absorbed, buffers = _look_at_edges(i, nodes, edges, items, buffers, work)
        if absorbed:
            if nodes.alive[i]:
                push(i, work)
        elif nodes.locked[i]:
            continue
        elif nodes.first_item[i] < 0 and may_eliminate(i, nodes, edges):
            buffers = eliminate(i, nodes, edges, buffers, work)
        elif nodes.size[i] > 1 and _dominance_cells(i, nodes, edges) <= _DOMINANCE_CELLS:
            dropped = drop_dominated(i, nodes, edges, items, buffers)
            if dropped:
                push(i, work)
    return buffers


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction:
    """What is left of a problem.

    Attributes:
        network: The smaller problem.
        infeasible: No choice satisfies the problem.
        nodes: Node of the problem for each node of the network.
        original: Number in the problem for each choice of the network.
        rows: Time of the problem for each row of the network, in order.
        log: Records of the nodes that went.
        num_original: Choices of each node of the problem.
    """

    network: Network
    infeasible: bool
    nodes: Ints
    original: Ints
    rows: Ints
    log: Ints32
    num_original: Ints

    def expand(self, choice: Ints) -> Ints:
        """Return the best extension of a choice of the network to the problem.

        Args:
            choice: One choice for each node of the network.
        """
        full = np.full(len(self.num_original), -1, np.int64)
        full[self.nodes] = self.original[self.network.first_choice[:-1] + choice]
        _replay(self.log, self.num_original, full)
        return full

    def restrict(self, choice: Ints) -> Ints | None:
        """Return a choice of the problem as one of the network; None if a part of it was dropped.

        Args:
            choice: One choice for each node of the problem.
        """
        first = self.network.first_choice
        places = np.flatnonzero(self.original == np.repeat(choice[self.nodes], np.diff(first)))
        if len(places) < len(self.nodes):
            return None
        return places - first[:-1]

    def choices(self, node: int) -> Ints:
        """Return what is left of the choices of a node, which is the network's `node`."""
        first = self.network.first_choice
        return self.original[first[node] : first[node + 1]]


def expanded(chain: Sequence[Reduction], choice: Ints) -> Ints:
    """Return a choice of the last of several networks in terms of the first problem.

    Args:
        chain: Each reduction begins with the network of the one before.
        choice: One choice for each node of the last network.
    """
    for reduction in reversed(chain):
        choice = reduction.expand(choice)
    return choice


@light_kernel
def _replay(log: Ints32, sizes: Ints, full: Ints) -> None:
    """Read the log backwards; `full` holds what is known."""
    starts = np.empty(sizes.size + 1, np.int64)
    count = 0
    top = 0
    while top < log.size:
        starts[count] = top
        count += 1
        if log[top] == ALONE:
            top += 3
        elif log[top] == OF_ONE:
            top += 3 + sizes[log[top + 2]]
        else:
            top += 4 + sizes[log[top + 2]] * sizes[log[top + 3]]
    for k in range(count - 1, -1, -1):
        top = starts[k]
        node = log[top + 1]
        if log[top] == ALONE:
            full[node] = log[top + 2]
        elif log[top] == OF_ONE:
            full[node] = log[top + 3 + full[log[top + 2]]]
        else:
            u, w = log[top + 2], log[top + 3]
            full[node] = log[top + 4 + full[u] * sizes[w] + full[w]]


@light_kernel
def _queue_all(nodes: Nodes, work: ReductionWork) -> None:
    work.counters[NUM_QUEUED] = 0
    for i in range(nodes.size.size):
        if nodes.alive[i]:
            push(i, work)


def reduce_instance(instance: Instance, stop: Flag | None = None) -> Reduction:
    """Shrink an instance without changing its optimum.

    Args:
        instance: The instance.
        stop: One number that another thread may set to `CUT`: the problem is then shrunk as far as
            it got, and is as valid; or to `END`, where the result is of no use.

    Source: arc consistency, dominance (dead-end elimination), contraction of functional edges and
    elimination of low degrees are the classical reductions of cost function networks; usage joins
    dominance as a second criterion.
    """
    network = network_of(instance)
    return _reduced(_state(network, network.cost, instance.limit or 0, stop), instance.limit, 0.0)


def reduce_network(network: Network, keep: Bools, stop: Flag | None = None) -> Reduction:
    """Shrink what was reduced before; every optimum of the network within `keep` stays one.

    Args:
        network: The network.
        keep: Choices that stay.
        stop: The same as for an instance.
    """
    limit = int(network.capacity.max(initial=0))
    fresh = network._replace(matrices=network.matrices.copy())
    cost = np.where(keep, network.cost, np.inf)
    return _reduced(_state(fresh, cost, limit, stop), limit, network.constant)


def reduce_problem(problem: Problem, *, keep: Iterable[int] = ()) -> Reduction:
    """Shrink the costs of a planner's problem without changing its optimum.

    Args:
        problem: The problem; its rows are left out.
        keep: Nodes that stay, with all choices that are possible.
    """
    network = cost_network(problem)
    state = _state(network, network.cost, 0, None)
    state.nodes.locked[list(keep)] = True
    return _reduced(state, None, 0.0)


def _reduced(state: ReductionState, limit: int | None, constant: float) -> Reduction:
    nodes, edges, items, buffers, work = state
    link_all(nodes, edges)
    merge_parallel(nodes, edges, buffers, work)
    binding = np.zeros(len(work.base) - 1, np.bool_)
    for _ in range(_ROUNDS):
        _queue_all(nodes, work)
        buffers = _run(nodes, edges, items, buffers, work)
        if limit is None or work.counters[INFEASIBLE]:
            break
        binding = binding_times(nodes, items, buffers, work, limit)
        if work.counters[INFEASIBLE] or not trim_items(nodes, items, binding) or work.stop[0]:
            break
    infeasible = bool(work.counters[INFEASIBLE])
    if infeasible:
        nodes.alive[:] = False
        edges.alive[:] = False
    alive, gone = np.flatnonzero(nodes.alive), np.flatnonzero(~nodes.alive)
    left = nodes.cost[nodes.start[gone]] if len(gone) and not infeasible else np.zeros(0)
    network = build_network(
        state._replace(buffers=buffers),
        binding,
        (limit or 0) - np.cumsum(work.base)[: len(binding)],
        constant + float(left.sum()),
    )
    chosen = np.concatenate(
        [nodes.original[nodes.start[i] : nodes.start[i] + nodes.size[i]] for i in alive]
        or [np.zeros(0, np.int32)]
    )
    return Reduction(
        network=network,
        # Each item of a node may have another least choice: together they say more than alone.
        infeasible=infeasible or bool((network.capacity < 0).any()),
        nodes=alive,
        original=chosen.astype(np.int64),
        rows=np.flatnonzero(binding),
        log=buffers.log[: work.counters[LOG_USED]],
        num_original=nodes.original_size,
    )


def _state(network: Network, cost: Floats, limit: int, stop: Flag | None) -> ReductionState:
    """Return a network as a problem that shrinks.

    Args:
        network: The network; its matrices are changed later on.
        cost: Cost of each choice, infinite for those that are left out.
        limit: No row has a capacity above it.
        stop: Flag for other threads; None for a fresh one.
    """
    count, num_edges, num_items = len(network.size), len(network.u), len(network.item_low)
    first = network.first_choice[:-1].copy()
    number = np.arange(len(network.cost)) - np.repeat(first, network.size)
    has_items = np.diff(network.first_item) > 0
    following = np.arange(1, num_items + 1)
    # The last item of each node ends its list.
    following[network.first_item[1:][has_items] - 1] = -1
    nodes = Nodes(
        size=network.size.copy(),
        original_size=network.size.copy(),
        start=first,
        cost=cost.copy(),
        original=number.astype(np.int32),
        alive=np.ones(count, np.bool_),
        locked=np.zeros(count, np.bool_),
        first_half=np.full(count, -1, np.int64),
        first_item=np.where(has_items, network.first_item[:-1], -1),
    )
    edges = Edges(
        u=network.u.copy(),
        v=network.v.copy(),
        start=network.first_entry[:-1].copy(),
        room=np.diff(network.first_entry),
        alive=np.ones(num_edges, np.bool_),
        next_half=np.full(2 * num_edges, -1, np.int64),
    )
    items = Items(
        start=network.first_usage.copy(),
        low=network.item_low.copy(),
        high=network.item_high.copy(),
        next_item=following,
    )
    buffers = ReductionBuffers(
        matrices=network.matrices, usages=network.usage.copy(), log=np.empty(1 << 8, np.int32)
    )
    work = ReductionWork(
        queue=np.zeros(count + 1, np.int64),
        queued=np.zeros(count, np.bool_),
        counters=np.zeros(8, np.int64),
        mark=np.full(count, -1, np.int64),
        base=np.zeros(len(network.capacity) + 1, np.int64),
        stop=np.zeros(1, np.int8) if stop is None else stop,
    )
    work.counters[MATRICES_USED] = len(buffers.matrices)
    work.counters[USAGES_USED] = len(buffers.usages)
    work.base[:-1] = np.diff(limit - network.capacity, prepend=0)
    return ReductionState(nodes, edges, items, buffers, work)
