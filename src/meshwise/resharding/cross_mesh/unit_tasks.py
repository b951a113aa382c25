"""What of a tensor is one piece on two meshes.

Along each dim a tensor is cut where either mesh cuts it.  Every box between cuts is a *unit task*:
some devices of the source hold all of it, some of the destination need all of it.

Source: AlpaComm section 2 (docs/facts.md section 3).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from meshwise.resharding.tiles import Box, holders, num_elements, overlap


class UnitTask(NamedTuple):
    """A box that is within one tile on both sides.

    Attributes:
        box: The elements.
        senders: Devices of the source that hold it, ascending.
        receivers: Devices of the destination that need it, ascending.
    """

    box: Box
    senders: tuple[int, ...]
    receivers: tuple[int, ...]


def unit_tasks(source: Mapping[int, Box], destination: Mapping[int, Box]) -> tuple[UnitTask, ...]:
    """Return all unit tasks, by place in the tensor.

    Args:
        source: The box that each device holds.
        destination: The box that each device needs.
    """
    given, wanted = holders(source), holders(destination)
    tasks = [
        UnitTask(box, senders, receivers)
        for tile, receivers in wanted.items()
        for part, senders in given.items()
        if num_elements(box := overlap(tile, part))
    ]
    return tuple(sorted(tasks))
