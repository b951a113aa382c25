"""From a table of costs to the list of stages worth a try, in the arrays of the kernels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from meshwise.inter.stages.idle_devices import after_idle
from meshwise.inter.stages.kernels.stage_arrays import Devices, Options
from meshwise.inter.stages.kernels.stage_filter_kernels import dominated, most_that_fit
from meshwise.inter.stages.stage_problem import StageProblem
from meshwise.kernels.arrays import Bools, Floats, Ints

# Sums of the same numbers in another order.
_ROUNDING = 1 + 1e-9


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageOptions:
    """The stages that may be chosen.

    Attributes:
        options: For the kernels; without transfers B and overlap do not matter.
        where: For each option (first layer, last layer, submesh, variant).
        num_stages: Exactly so many stages; 0 for any number.
        devices: Where submeshes may lie.
    """

    options: Options
    where: Ints
    num_stages: int
    devices: Devices

    def box(self) -> tuple[float, float, float, float]:
        """Least and largest load of a stage in the steady state, least and largest once."""
        o = self.options
        most = o.more_batches * (o.slot.max() + o.transfer.max(initial=0.0))
        most += (o.slot - o.fill).max()
        least = o.more_batches * o.slot.min() + (o.slot - o.fill).min()
        return float(least), float(most), float(o.once.min()), float(o.once.max())


class _Listed(NamedTuple):
    """Stages, an entry each, in the order of the costs.

    Attributes:
        place: Where the costs have it, as one number.
        group: Number of its layers on its submesh.
        slot, fill, once, most_to_end: As `Options` has them.
    """

    place: Ints
    group: Ints
    slot: Floats
    fill: Floats
    once: Floats
    most_to_end: Ints

    def only(self, chosen: Bools | Ints) -> _Listed:
        """Return some of them: a mask, or their numbers."""
        return _Listed(
            self.place[chosen],
            self.group[chosen],
            self.slot[chosen],
            self.fill[chosen],
            self.once[chosen],
            self.most_to_end[chosen],
        )


def stage_options(
    problem: StageProblem, num_stages: int = 0, at_most_s: float = math.inf
) -> StageOptions:
    """The stages that fit into memory and that no variant of the same layers and submesh beats.

    Args:
        problem: What is to be cut.
        num_stages: Exactly so many stages; 0 for any number, which a schedule whose memory depends
            on the number of stages does not allow.
        at_most_s: Stages are left out whose own work takes longer in a step.

    Raises:
        ValueError: costs of such a stage are no numbers, or below 0.
    """
    costs, schedule = problem.costs, problem.schedule
    num_layers = costs.num_layers
    size = np.array([m.num_devices for m in costs.submeshes])
    found = _unbeaten(_possible(problem, num_stages, at_most_s))
    where = np.column_stack(np.unravel_index(found.place, costs.microbatch_s.shape))
    _, first_option = np.unique(found.group, return_index=True)
    first, last, kind = (np.ascontiguousarray(x) for x in where[first_option, :3].T)
    transfer = problem.transfer_s
    if transfer is None:
        transfer = np.zeros((num_layers - 1, len(size), len(size)))
    least = np.concatenate((transfer.min(axis=2), np.zeros((1, len(size)))))[last, kind]
    before_any = np.concatenate((np.zeros((1, len(size))), 0.5 * transfer.min(axis=1)))[first, kind]
    right_class = _classes_of_columns(transfer)
    before, rank = _levels(transfer, right_class)
    options = Options(
        first_group=np.searchsorted(first, np.arange(num_layers + 1)),
        last=last,
        kind=kind,
        first_option=np.append(first_option, len(where)),
        least_transfer=least,
        least_before=before_any,
        slot=found.slot,
        fill=found.fill,
        once=found.once,
        most_to_end=found.most_to_end,
        right_class=right_class,
        num_classes=int(right_class.max()) + 1,
        transfer=np.ascontiguousarray(transfer),
        before=before,
        rank=rank,
        more_batches=float(problem.num_microbatches - 1),
        hides=schedule.hides_transfers,
    )
    return StageOptions(
        options=options, where=where, num_stages=num_stages, devices=_devices(problem)
    )


def _possible(problem: StageProblem, num_stages: int, at_most_s: float) -> _Listed:
    """List the stages that fit into memory and are not left out."""
    costs, schedule = problem.costs, problem.schedule
    size = np.array([m.num_devices for m in costs.submeshes])
    memory = np.array([m.memory_bytes for m in costs.submeshes], np.float64)
    num_kinds, num_variants = costs.microbatch_s.shape[2:]
    layers = np.arange(costs.num_layers)
    length = layers[None, :] - layers[:, None] + 1
    # Interleaved stages have a layer for each chunk.
    exists = (length >= schedule.chunks)[:, :, None] & (size <= problem.num_devices)
    exists = (costs.microbatch_s != np.inf) & exists[..., None]
    if problem.allowed is not None:
        exists &= problem.allowed
    place = np.flatnonzero(exists)
    columns = {name: column.ravel()[place] for name, column in costs.columns().items()}
    for name, column in columns.items():
        # NaN is not >= 0.
        if not (column >= 0).all():
            raise ValueError(f"`{name}` holds values that are no numbers or below 0")
    slot, once = columns["microbatch_s"] + columns.get("gather_s", 0.0), columns["once_s"]
    group = place // num_variants
    most_stages, count = num_stages or costs.num_layers, problem.num_microbatches
    in_flight = [schedule.in_flight(s, most_stages, count) for s in range(1, most_stages + 1)]
    most = most_that_fit(
        columns["resident_bytes"],
        columns["microbatch_bytes"],
        columns["temporary_bytes"],
        memory[group % num_kinds],
        np.array(in_flight, np.float64),
    )
    is_possible = (most >= 1) & np.isfinite(slot)
    if math.isfinite(at_most_s):
        is_possible &= count * slot + once <= at_most_s * _ROUNDING
    listed = _Listed(place, group, slot, schedule.fill_s(slot), once, most)
    return listed.only(is_possible)


def _unbeaten(listed: _Listed) -> _Listed:
    """Leave out what a variant of the same layers and submesh beats; sort each group by fill."""
    _, group, slot, fill, once, most = listed
    listed = listed.only(~dominated(group, slot, fill, once, most))
    return listed.only(np.lexsort((listed.fill, listed.group)))


def _devices(problem: StageProblem) -> Devices:
    """Return where submeshes may lie, device by device."""
    submeshes, count = problem.costs.submeshes, problem.num_devices
    size = np.array([m.num_devices for m in submeshes], np.int64)
    if all(m.starts is None for m in submeshes):
        nowhere, never = np.zeros((0, 0), np.bool_), np.zeros(0, np.int64)
        return Devices(size, count, nowhere, never, problem.use_all_devices)
    may_start = np.zeros((len(submeshes), count + 1), np.bool_)
    for i, submesh in enumerate(submeshes):
        if submesh.starts is None:
            may_start[i] = True
        else:
            may_start[i, list(submesh.starts)] = True
        may_start[i, max(count - submesh.num_devices + 1, 0) :] = False
    return Devices(size, count, may_start, after_idle(problem), problem.use_all_devices)


def devices_of(options: StageOptions, has_option: Bools) -> tuple[Devices, int]:
    """Devices for the kernels, in units of as many as all submeshes in use have in common.

    Where devices may stay idle at known places, a unit is one device.

    Args:
        options: What may be chosen.
        has_option: Which submeshes are in use.

    Returns:
        The devices, and how many make a unit.
    """
    size, count, may_start, idle, use_all = options.devices
    unit = int(np.gcd.reduce(size[has_option])) if has_option.any() else 1
    is_placed = may_start.size > 0
    # No sum of these sizes gives the count; with units of one the kernels find that out.
    if (use_all and count % unit) or (is_placed and not use_all):
        unit = 1
    if unit == 1 and is_placed:
        return options.devices, 1
    size = np.where(has_option, size // unit, count + 1)
    may_start = np.ascontiguousarray(may_start[:, ::unit])
    return Devices(size, count // unit, may_start, idle, use_all), unit


def _classes_of_columns(transfer: Floats) -> Ints:
    """Right neighbours that cost every left one the same, at every boundary, are one class."""
    columns = transfer.reshape(-1, transfer.shape[2]).T
    # Bytes of numbers that are not negative, the highest first, are in the order of the numbers.
    keys = [column.tobytes() for column in columns.astype(">f8")]
    numbers = {key: n for n, key in enumerate(sorted(set(keys)))}
    return np.array([numbers[key] for key in keys], np.int64)


def _levels(transfer: Floats, right_class: Ints) -> tuple[Floats, Ints]:
    """`Options.before` and `Options.rank`."""
    _, of_class = np.unique(right_class, return_index=True)
    halves = 0.5 * transfer[:, :, of_class]
    order = np.argsort(halves, axis=1, kind="stable")
    sorted_halves = np.take_along_axis(halves, order, axis=1)
    is_new = np.ones(halves.shape, np.bool_)
    is_new[:, 1:] = sorted_halves[:, 1:] > sorted_halves[:, :-1]
    level = np.cumsum(is_new, axis=1) - 1
    rank = np.empty(halves.shape, np.int64)
    np.put_along_axis(rank, order, level, axis=1)
    count = int(level.max(initial=0)) + 1
    # A row at least, which kernels may look at where there is no boundary.
    before = np.full((max(halves.shape[0], 1), halves.shape[2], count), np.inf)
    cut, place, right = np.indices(halves.shape)
    before[cut, right, level] = sorted_halves[cut, place, right]
    return before, rank
