"""The compiled part of stage construction: least fill within given limits of the bottlenecks.

All kernels are in this one file, for Numba keeps what it compiled until the file changes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwise.inter.stages.kernels.stage_arrays import (
    Devices,
    FillBounds,
    Limits,
    Options,
)
from meshwise.kernels.arrays import Bools, Floats, Ints
from meshwise.kernels.compiler import light_kernel, part

_INF = np.inf
_LARGE = 1e300
# Limits are sums of the same numbers in another order.
_ROUNDING = 1.0 + 1e-12
# Of `_Labels.number`.
_COLUMNS = 6


@part
def _load(t: float, fill: float, passed: float, options: Options) -> float:
    """What a stage adds to the steady state; half the transfers at both its ends are its own."""
    if options.hides:
        slot = t if t > passed else passed
    else:
        slot = t + passed
    return options.more_batches * slot + (t - fill)


@light_kernel
def least_fill_of_groups(
    options: Options, most_load: float, most_once: float
) -> tuple[Floats, Ints]:
    """For each group the least fill within the limits, its cheapest transfer included.

    Memory counts with the least number of stages that can follow; that number, for each first
    layer, is the second result (L + 1 entries, a large one where there is no way to the end).
    """
    num_layers = len(options.first_group) - 1
    never = np.int64(1 << 30)
    cost = np.full(len(options.last), _INF)
    least_to_end = np.full(num_layers + 1, never)
    least_to_end[num_layers] = 0
    most_load, most_once = most_load * _ROUNDING, most_once * _ROUNDING
    for k in range(num_layers - 1, -1, -1):
        for g in range(options.first_group[k], options.first_group[k + 1]):
            to_end = least_to_end[options.last[g] + 1] + 1
            transfer = options.least_transfer[g]
            passed = 0.5 * transfer + options.least_before[g]
            for o in range(options.first_option[g], options.first_option[g + 1]):
                if to_end > options.most_to_end[o] or options.once[o] > most_once:
                    continue
                if _load(options.slot[o], options.fill[o], passed, options) > most_load:
                    continue
                cost[g] = options.fill[o] + transfer
                if to_end < least_to_end[k]:
                    least_to_end[k] = to_end
                break
    return cost, least_to_end


@part
def _least_devices_before(options: Options, cost: Floats, devices: Devices) -> Ints:
    """Devices that the layers before each one take at least."""
    num_layers = len(options.first_group) - 1
    least = np.full(num_layers + 1, devices.total + 1)
    least[0] = 0
    for k in range(num_layers):
        for g in range(options.first_group[k], options.first_group[k + 1]):
            if cost[g] < _INF:
                end = options.last[g] + 1
                taken = least[k] + devices.size[options.kind[g]]
                least[end] = taken if taken < least[end] else least[end]
    return least


@part
def _relax(row: Floats, after: Floats, low: int, high: int, size: int, cost: float) -> None:
    """Positions low to high: a stage of this cost and size, and what follows it."""
    here, there = row[low : high + 1], after[low + size : high + size + 1]
    for p in range(len(here)):
        value = there[p] + cost
        here[p] = value if value < here[p] else here[p]


@part
def _relax_at(
    row: Floats,
    after: Floats,
    start: Bools,
    positions: tuple[int, int],
    size: int,
    cost: float,
) -> None:
    low, high = positions
    for p in range(low, high + 1):
        if start[p]:
            value = after[p + size] + cost
            row[p] = value if value < row[p] else row[p]


@light_kernel
def cost_to_end(options: Options, cost: Floats, devices: Devices) -> Floats:
    """Least cost of the layers from k on, on the devices from p on, with costs of groups.

    A lower bound of what remains at (k, p): memory and transfers count as in the costs of groups.
    """
    num_layers, count = len(options.first_group) - 1, devices.total
    anywhere = devices.may_start.size == 0
    least = np.full((num_layers + 1, count + 1), _INF)
    low = np.full(num_layers + 1, count + 1)
    high = np.full(num_layers + 1, -1)
    high[num_layers] = count
    if devices.use_all:
        least[num_layers, count] = 0.0
        low[num_layers] = count
    else:
        least[num_layers, :] = 0.0
        low[num_layers] = 0
    before = _least_devices_before(options, cost, devices)
    for k in range(num_layers - 1, -1, -1):
        row = least[k]
        for g in range(options.first_group[k], options.first_group[k + 1]):
            if cost[g] == _INF:
                continue
            size, end = int(devices.size[options.kind[g]]), int(options.last[g]) + 1
            first, last = int(max(low[end] - size, before[k])), int(high[end]) - size
            if first > last:
                continue
            if anywhere:
                _relax(row, least[end], first, last, size, cost[g])
            else:
                start = devices.may_start[options.kind[g]]
                _relax_at(row, least[end], start, (first, last), size, cost[g])
            low[k], high[k] = min(low[k], first), max(high[k], last)
        if not anywhere and not devices.use_all and high[k] >= 0:
            # Devices may be passed over.
            for p in range(high[k] - 1, before[k] - 1, -1):
                row[p] = min(row[p], row[devices.after_idle[p]])
            low[k] = min(low[k], before[k])
    return least


@light_kernel
def stages_of_bound(options: Options, cost: Floats, to_end: Floats, devices: Devices) -> int:
    """How many stages the way has that `cost_to_end` found from the first layer and device."""
    num_layers = len(options.first_group) - 1
    skips = devices.may_start.size > 0 and not devices.use_all
    k = 0
    p = 0
    count = 0
    while k < num_layers and to_end[k, p] < _INF:
        best = _INF
        chosen = -1
        for g in range(options.first_group[k], options.first_group[k + 1]):
            if cost[g] < _INF and _may_start(options.kind[g], p, devices):
                q = p + devices.size[options.kind[g]]
                value = cost[g] + to_end[options.last[g] + 1, q]
                if value < best:
                    best, chosen = value, g
        if skips and p < devices.total and to_end[k, devices.after_idle[p]] < best:
            p = int(devices.after_idle[p])
        elif chosen < 0:
            break
        else:
            p += int(devices.size[options.kind[chosen]])
            k = int(options.last[chosen]) + 1
            count += 1
    return count


@part
def _may_start(kind: int, p: int, devices: Devices) -> bool:
    if p + devices.size[kind] > devices.total:
        return False
    return devices.may_start.size == 0 or devices.may_start[kind, p]


@part
def _cost_from_start(
    options: Options, cost: Floats, to_end: Floats, devices: Devices, cutoff: float
) -> Floats:
    """Least cost of the layers before k on the devices before p, where it can lead to a solution.

    Infinite where every solution through (k, p) costs more than the cutoff.
    """
    num_layers, count = len(options.first_group) - 1, devices.total
    skips = devices.may_start.size > 0 and not devices.use_all
    least = np.full((num_layers + 1, count + 1), _INF)
    least[0, 0] = 0.0
    for k in range(num_layers):
        for p in range(count + 1):
            here = least[k, p]
            if here + to_end[k, p] > cutoff:
                least[k, p] = _INF
                continue
            if skips and p < count:
                q = devices.after_idle[p]
                if here + to_end[k, q] <= cutoff:
                    least[k, q] = min(least[k, q], here)
            for g in range(options.first_group[k], options.first_group[k + 1]):
                value = here + cost[g]
                if value == _INF or not _may_start(options.kind[g], p, devices):
                    continue
                end, q = options.last[g] + 1, p + devices.size[options.kind[g]]
                if value + to_end[end, q] <= cutoff and value < least[end, q]:
                    least[end, q] = value
    return least


class _Labels(NamedTuple):
    """Ways from a state (k, p) to the end, none of them worse in all than another.

    Attributes:
        value: Fill of the stages and transfers.
        number: Column 0: stages; 1: first option; 2: kind of the first stage; 3: its first device;
            4: next label, -1 at the end; 5: how many of `Options.before` the first stage allows.
    """

    value: Floats
    number: Ints


@part
def _grown(labels: _Labels) -> _Labels:
    size = len(labels.value)
    value, number = np.empty(2 * size), np.empty((2 * size, _COLUMNS), np.int64)
    value[:size] = labels.value
    number[:size] = labels.number
    return _Labels(value, number)


class _Found(NamedTuple):
    """The best ways of one state, by class of the first submesh, stages, and what may come before.

    Attributes:
        labels: One for each [class, number of stages, level]; the value is infinite if none.
        touched: The places of those that are not, in the order in which they were found.
        num_touched: How many these are; one entry.
        number: Room for one row of `labels.number`.
    """

    labels: _Labels
    touched: Ints
    num_touched: Ints
    number: Ints


class _State(NamedTuple):
    """A first layer and device.

    Attributes:
        layer: The layer.
        device: The device.
        room: What the stages from here to the end may cost.
    """

    layer: int
    device: int
    room: float


class _Choice(NamedTuple):
    """What may be chosen.

    Attributes:
        options: The stages.
        limits: Their limits.
    """

    options: Options
    limits: Limits


@part
def _nothing_found(options: Options) -> _Found:
    width = options.num_classes * len(options.first_group) * (options.before.shape[2] + 1)
    return _Found(
        _Labels(np.full(width, _INF), np.empty((width, _COLUMNS), np.int64)),
        np.empty(width, np.int64),
        np.zeros(1, np.int64),
        np.empty(_COLUMNS, np.int64),
    )


@part
def _end_labels() -> _Labels:
    """Label 0, which all ends share: no stages."""
    labels = _Labels(np.empty(1024), np.empty((1024, _COLUMNS), np.int64))
    labels.value[0] = 0.0
    labels.number[0, :] = 0
    labels.number[0, 4] = -1
    return labels


@part
def _level(slot: float, fill: float, after: float, before: Floats, most: float, options: Options):
    """How many of the least transfers to the left a stage allows, with half of that to the right.

    Args:
        slot: Time of the stage.
        fill: Its fill.
        after: Half the transfer to the right.
        before: Halves of those to the left, sorted.
        most: Limit of its load.
        options: The stages.
    """
    low, high = 0, len(before)
    at = high - 1
    while low < high:
        if _load(slot, fill, after + before[at], options) <= most:
            low = at + 1
        else:
            high = at
        at = (low + high) // 2
    return low


@part
def _offer(value: float, number: Ints, options: Options, found: _Found) -> None:
    """Keep a way if it is the best of its class, number of stages and level."""
    at = options.right_class[number[2]] * len(options.first_group) + number[0]
    at = at * (options.before.shape[2] + 1) + number[5]
    if value < found.labels.value[at]:
        if found.labels.value[at] == _INF:
            found.touched[found.num_touched[0]] = at
            found.num_touched[0] += 1
        found.labels.value[at] = value
        found.labels.number[at] = number


@part
def _extend(
    g: int, label: int, state: _State, choice: _Choice, labels: _Labels, found: _Found
) -> None:
    """Put a stage of a group, at a first layer and device, before a label."""
    options, limits = choice
    kind, last = options.kind[g], options.last[g]
    transfer = 0.0
    if last < len(options.first_group) - 2:
        right = labels.number[label, 2]
        if options.rank[last, kind, options.right_class[right]] >= labels.number[label, 5]:
            # Too much for the stage on the right.
            return
        transfer = float(options.transfer[last, kind, right])
    count = labels.number[label, 0] + 1
    top, best = 0, -1
    before = np.empty(0)
    if state.layer > 0:
        before = options.before[state.layer - 1, options.right_class[kind]]
        top = len(before)
    for o in range(options.first_option[g], options.first_option[g + 1]):
        value = options.fill[o] + limits.toll + transfer + labels.value[label]
        if value > state.room:
            return
        if count > options.most_to_end[o] or options.once[o] > limits.once:
            continue
        slot, fill = options.slot[o], options.fill[o]
        if _load(slot, fill, 0.5 * transfer, options) > limits.load:
            continue
        level = 0
        if top > 0:
            level = _level(slot, fill, 0.5 * transfer, before, limits.load, options)
            if level == 0:
                continue
        if level > best:
            found.number[:] = (count, o, kind, state.device, label, level)
            _offer(value, found.number, options, found)
            best = level
        if level == top:
            # The next options of the group have more fill.
            return


@part
def _keep(labels: _Labels, used: int, value: float, number: Ints) -> _Labels:
    """Write a label at the end; the arrays grow where they must."""
    if used == len(labels.value):
        labels = _grown(labels)
    labels.value[used] = value
    labels.number[used] = number
    return labels


@part
def _keep_best(
    labels: _Labels, used: int, found: _Found, options: Options, every: bool
) -> tuple[_Labels, int]:
    """Keep what was found, of each class what no other beats, and make room for the next state.

    Args:
        labels: All labels.
        used: How many there are.
        found: One for each class, number of stages and level.
        options: The stages.
        every: Keep more stages at a higher cost too: their number may be what is wanted.

    Returns:
        All labels, and how many there are.
    """
    width = len(options.first_group) * (options.before.shape[2] + 1)
    touched = np.sort(found.touched[: found.num_touched[0]])
    begin = 0
    while begin < len(touched):
        end = begin
        while end < len(touched) and touched[end] // width == touched[begin] // width:
            end += 1
        for at in touched[begin:end]:
            value, number = found.labels.value[at], found.labels.number[at]
            is_beaten = False
            for other in touched[begin:end]:
                better = found.labels.number[other]
                if other == at or better[0] > number[0] or better[5] < number[5]:
                    continue
                if every and better[0] != number[0]:
                    continue
                # Of equal ones that with fewer stages stays, or which allows more.
                if found.labels.value[other] <= value:
                    is_beaten = True
                    break
            if not is_beaten:
                labels = _keep(labels, used, float(value), number)
                used += 1
        begin = end
    found.labels.value[touched] = _INF
    found.num_touched[0] = 0
    return labels, used


@part
def _take_over(
    first: int, behind: int, room: float, options: Options, labels: _Labels, found: _Found
) -> None:
    """Ways that leave the first device unused."""
    for label in range(first, behind):
        if labels.value[label] <= room:
            _offer(labels.value[label], labels.number[label], options, found)


@light_kernel
def cheapest_stages(
    options: Options,
    devices: Devices,
    bounds: FillBounds,
    limits: Limits,
    cutoff: float,
    num_stages: int,
) -> tuple[float, Ints]:
    """Least fill and transfers of stages within the limits that cost no more than the cutoff.

    From the last layer to the first, each state (k, p) keeps its best ways to the end by number of
    stages, for memory, by class of its first submesh, for the transfer to what comes before, and by
    how much of that the first stage allows.

    Args:
        options: The stages.
        devices: The devices.
        bounds: Lower bounds, for the same limits.
        limits: Of every stage.
        cutoff: Costlier solutions are not wanted; tolls count.
        num_stages: Exactly so many; any number if below 1.

    Returns:
        The cost with tolls, infinite if there is none; for each stage its option and first device.
    """
    num_layers, count = len(options.first_group) - 1, devices.total
    cost, to_end = bounds
    # What is impossible is above every cutoff.
    cutoff = min(cutoff, _LARGE)
    within = Limits(limits.load * _ROUNDING, limits.once * _ROUNDING, limits.toll)
    choice = _Choice(options, within)
    skips = devices.may_start.size > 0 and not devices.use_all
    from_start = _cost_from_start(options, cost, to_end, devices, cutoff)
    labels, used, found = _end_labels(), 1, _nothing_found(options)
    first = np.zeros((num_layers + 1, count + 2), np.int64)
    behind = np.zeros((num_layers + 1, count + 2), np.int64)
    for p in range(count + 1):
        behind[num_layers, p] = 1 if from_start[num_layers, p] < _INF else 0
    for k in range(num_layers - 1, -1, -1):
        for p in range(count, -1, -1):
            state = _State(k, p, cutoff - from_start[k, p])
            if from_start[k, p] == _INF or to_end[k, p] > state.room:
                continue
            for g in range(options.first_group[k], options.first_group[k + 1]):
                kind = options.kind[g]
                if cost[g] == _INF or not _may_start(kind, p, devices):
                    continue
                end, q = options.last[g] + 1, p + devices.size[kind]
                if cost[g] + to_end[end, q] > state.room:
                    continue
                for label in range(first[end, q], behind[end, q]):
                    _extend(g, label, state, choice, labels, found)
            if skips:
                q = devices.after_idle[p]
                ends = first[k, q], behind[k, q]
                _take_over(ends[0], ends[1], state.room, options, labels, found)
            first[k, p] = used
            labels, used = _keep_best(labels, used, found, options, num_stages >= 1)
            behind[k, p] = used
    return _best_way(first[0, 0], behind[0, 0], labels, num_stages)


@part
def _best_way(first: int, behind: int, labels: _Labels, num_stages: int) -> tuple[float, Ints]:
    best, value = -1, _INF
    for label in range(first, behind):
        fits = num_stages < 1 or labels.number[label, 0] == num_stages
        if fits and labels.value[label] < value:
            best, value = label, labels.value[label]
    length = labels.number[best, 0] if best >= 0 else 0
    way = np.empty((length, 2), np.int64)
    for i in range(length):
        way[i, 0], way[i, 1] = labels.number[best, 1], labels.number[best, 3]
        best = labels.number[best, 4]
    return value, way
