"""The stages that may be chosen, and the devices, as the kernels read them.

Kernels take these arrays, so that this file counts for the folder of `meshwise.kernels`.
"""

from __future__ import annotations

from typing import NamedTuple

from meshwise.kernels.arrays import Bools, Floats, Ints


class Options(NamedTuple):
    """Every stage that may be chosen; options of the same layers and submesh form a group.

    Groups are sorted by first layer, options in a group by fill.

    Attributes:
        first_group: Of each first layer, and the end; L + 1 entries.
        last: Last layer of each group.
        kind: Submesh of each group.
        first_option: Of each group, and the end.
        least_transfer: Of each group, to any right neighbour.
        least_before: Of each group, half of the least from any left neighbour.
        slot: Time of a micro-batch of each option.
        fill: Its fill.
        once: Its time once a step.
        most_to_end: Stages from it to the end at most, for memory.
        right_class: Of each kind; kinds of a class cost every left neighbour the same.
        num_classes: How many.
        transfer: [boundary, left kind, right kind].
        before: [boundary, right class, level]: halves of the transfers of all left kinds, each
            once, from the least up; infinite where there are fewer.
        rank: [boundary, left kind, right class]: where its half is among these.
        more_batches: B - 1.
        hides: Whether transfers run beside computation.
    """

    first_group: Ints
    last: Ints
    kind: Ints
    first_option: Ints
    least_transfer: Floats
    least_before: Floats
    slot: Floats
    fill: Floats
    once: Floats
    most_to_end: Ints
    right_class: Ints
    num_classes: int
    transfer: Floats
    before: Floats
    rank: Ints
    more_batches: float
    hides: bool


class Devices(NamedTuple):
    """Where submeshes may lie.

    Attributes:
        size: Devices of each kind.
        total: Devices in all.
        may_start: [kind, first device]; empty if anywhere.
        after_idle: Where the next stage may begin if a device stays idle, at the earliest.
        use_all: Whether all must be used.
    """

    size: Ints
    total: int
    may_start: Bools
    after_idle: Ints
    use_all: bool


class Limits(NamedTuple):
    """What every stage must keep within.

    Attributes:
        load: What it may add to the steady state, in seconds.
        once: Its time once a step at most, in seconds.
        toll: What is added to its cost, in seconds.
    """

    load: float
    once: float
    toll: float


class FillBounds(NamedTuple):
    """Lower bounds of the cost of stages.

    Attributes:
        cost: Of `least_fill_of_groups`, the toll added.
        to_end: Of `cost_to_end`, with these costs.
    """

    cost: Floats
    to_end: Floats
