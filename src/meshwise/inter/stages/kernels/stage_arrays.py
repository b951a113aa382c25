"""The stages that may be chosen, and the devices, as the kernels read them.

Kernels take these arrays, so that this file counts for the folder of `meshwise.kernels`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

Array = Any


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

    first_group: Array
    last: Array
    kind: Array
    first_option: Array
    least_transfer: Array
    least_before: Array
    slot: Array
    fill: Array
    once: Array
    most_to_end: Array
    right_class: Array
    num_classes: int
    transfer: Array
    before: Array
    rank: Array
    more_batches: float
    hides: bool


class Devices(NamedTuple):
    """Where submeshes may lie.

    Attributes:
        size: Devices of each kind.
        total: Devices in all.
        may_start: [kind, first device]; empty if anywhere.
        use_all: Whether all must be used.
    """

    size: Array
    total: int
    may_start: Array
    use_all: bool
