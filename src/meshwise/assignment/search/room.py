"""Bytes left in the memory rows, with the least of each block so that long intervals are quick."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwise.assignment.network import Network
from meshwise.assignment.reductions.arrays import least_in
from meshwise.kernels.arrays import Ints
from meshwise.kernels.compiler import light_kernel, part

# Rows in one block.
_BLOCK = 64


class Room(NamedTuple):
    """Bytes left in each row, and the least of each block of rows.

    Attributes:
        row: Bytes left in each row.
        block: Least bytes left in each `_BLOCK` rows.
    """

    row: Ints
    block: Ints


class Placed(NamedTuple):
    """A choice and what it leaves in the rows.

    Attributes:
        choice: One choice for each node.
        room: Bytes left in each row.
    """

    choice: Ints
    room: Room


@light_kernel
def room_of(rows: Ints) -> Room:
    """Return room with its blocks, from bytes left in each row."""
    room = Room(rows.copy(), np.empty((rows.size + _BLOCK - 1) // _BLOCK, np.int64))
    for block in range(room.block.size):
        room.block[block] = _least_of_block(block, room)
    return room


@part
def _least_of_block(block: int, room: Room) -> int:
    high = (block + 1) * _BLOCK
    return least_in(room.row, block * _BLOCK, high if high < room.row.size else room.row.size)


@part
def _fits(low: int, high: int, used: int, room: Room) -> bool:
    row = low
    while row < high:
        if row % _BLOCK == 0 and row + _BLOCK <= high:
            if room.block[row // _BLOCK] < used:
                return False
            row += _BLOCK
        else:
            if room.row[row] < used:
                return False
            row += 1
    return True


@part
def take(i: int, s: int, sign: int, net: Network, room: Room) -> None:
    """Take (sign 1) or give back (sign -1) what choice `s` of a node uses."""
    for k in range(net.first_item[i], net.first_item[i + 1]):
        used = sign * net.usage[net.first_usage[k] + s]
        if used == 0:
            continue
        low, high = net.item_low[k], net.item_high[k]
        for row in range(low, high):
            room.row[row] -= used
        for block in range(low // _BLOCK, (high - 1) // _BLOCK + 1):
            if low <= block * _BLOCK and (block + 1) * _BLOCK <= high:
                room.block[block] -= used
            else:
                room.block[block] = _least_of_block(block, room)


@part
def is_allowed(i: int, s: int, net: Network, room: Room) -> bool:
    """Return whether every row has the bytes that choice `s` of a node uses."""
    for k in range(net.first_item[i], net.first_item[i + 1]):
        used = int(net.usage[net.first_usage[k] + s])
        if used > 0 and not _fits(net.item_low[k], net.item_high[k], used, room):
            return False
    return True
