"""Memory rows: which times can bind, and the usage that lies in them."""

from __future__ import annotations

import numpy as np

from meshwise.assignment.reductions.arrays import (
    INFEASIBLE,
    Items,
    Nodes,
    ReductionBuffers,
    ReductionWork,
)
from meshwise.kernels.arrays import Bools, Ints
from meshwise.kernels.compiler import light_kernel, part


@part
def _loads(
    nodes: Nodes, items: Items, buffers: ReductionBuffers, num_times: int
) -> tuple[Ints, Ints, Ints]:
    """Return the most usage (as differences), and the items that begin and end at each time."""
    most = np.zeros(num_times + 1, np.int64)
    begin = np.zeros(num_times + 1, np.int64)
    end = np.zeros(num_times + 1, np.int64)
    for i in range(nodes.size.size):
        if nodes.alive[i]:
            item: int = nodes.first_item[i]
            while item >= 0:
                first: int = items.start[item]
                peak = buffers.usages[first]
                for s in range(1, nodes.size[i]):
                    used = buffers.usages[first + s]
                    peak = used if used > peak else peak
                most[items.low[item]] += peak
                most[items.high[item]] -= peak
                begin[items.low[item]] += 1
                end[items.high[item]] += 1
                item = items.next_item[item]
    return most, begin, end


@light_kernel
def binding_times(
    nodes: Nodes, items: Items, buffers: ReductionBuffers, work: ReductionWork, limit: int
) -> Bools:
    """Return times whose row could be violated and is not implied by that of the time beside it."""
    num_times = work.base.size - 1
    most, begin, end = _loads(nodes, items, buffers, num_times)
    binding = np.zeros(num_times, np.bool_)
    base = work.base.copy()
    above = most
    for t in range(num_times):
        if t:
            base[t] += base[t - 1]
            above[t] += above[t - 1]
    for t in range(num_times):
        if base[t] > limit:
            work.counters[INFEASIBLE] = 1
        binding[t] = base[t] + above[t] > limit
    for t in range(num_times - 1):
        if end[t + 1] == 0 and base[t + 1] >= base[t]:
            binding[t] = False
    for t in range(num_times - 1, 0, -1):
        if begin[t] == 0 and base[t - 1] >= base[t] and (end[t] > 0 or base[t - 1] > base[t]):
            binding[t] = False
    return binding


@light_kernel
def trim_items(nodes: Nodes, items: Items, binding: Bools) -> int:
    """Cut items to the binding times that they cover; how many cover none and went."""
    num_times = binding.size
    following = np.full(num_times + 1, num_times, np.int64)
    for t in range(num_times - 1, -1, -1):
        following[t] = t if binding[t] else following[t + 1]
    after_last = np.zeros(num_times + 1, np.int64)
    for t in range(num_times):
        after_last[t + 1] = t + 1 if binding[t] else after_last[t]
    gone = 0
    for i in range(nodes.size.size):
        before = -1
        item = nodes.first_item[i] if nodes.alive[i] else -1
        while item >= 0:
            after: int = items.next_item[item]
            low, high = following[items.low[item]], after_last[items.high[item]]
            if low < high:
                items.low[item], items.high[item] = low, high
                before = item
            else:
                gone += 1
                if before < 0:
                    nodes.first_item[i] = after
                else:
                    items.next_item[before] = after
            item = after
    return gone
