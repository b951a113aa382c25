"""How the tiles of a tensor get from devices to devices, step by step, for all of them at once.

Values are numbered: a tile, a piece of one, or a copy, each on one device.  A *phase* cuts pieces
out of values, moves values between devices, and joins pieces to tiles; each phase takes what those
before it made.  A device, or a process with some devices, carries out the steps that it is part of,
without waiting: what has to come after something else on another device waits for a signal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from meshwise.resharding.once import HomedTile, homed_tiles
from meshwise.resharding.tiles import Box, box_shape, num_elements, within


class Cut(NamedTuple):
    """Pieces are cut out of a value.

    Attributes:
        device: The device that does it.
        value: The value.
        parts: The pieces, by their places in the value.
        results: For each piece its number.
        after: Values of the device that must be there before.
    """

    device: int
    value: int
    parts: tuple[Box, ...]
    results: tuple[int, ...]
    after: tuple[int, ...] = ()


class Move(NamedTuple):
    """A value is copied to another device.

    Attributes:
        value: The value.
        source: The device that has it.
        destination: The device that gets it.
        result: The number of the copy.
        shape: The shape of the value.
    """

    value: int
    source: int
    destination: int
    result: int
    shape: tuple[int, ...]


class Signal(NamedTuple):
    """A device tells another one that a value is there: it sends the first element of it.

    Attributes:
        value: The value.
        source: The device that has it.
        destination: The device that is told.
        result: The number of what it gets.
        rank: How many dims the value has.
    """

    value: int
    source: int
    destination: int
    result: int
    rank: int


class Join(NamedTuple):
    """Pieces are put together.

    Attributes:
        device: The device that does it.
        values: The pieces.
        places: For each piece its place in what comes out.
        result: The number of what comes out.
    """

    device: int
    values: tuple[int, ...]
    places: tuple[Box, ...]
    result: int


class Phase(NamedTuple):
    """Cuts, then moves, then joins; signals are sent with the moves."""

    cuts: tuple[Cut, ...]
    moves: tuple[Move, ...]
    joins: tuple[Join, ...]
    signals: tuple[Signal, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """How a tensor gets from one placement to another.

    Attributes:
        held: For each device of the source the value that it holds at first.
        phases: What is done, in order.
        shards: For each device of the destination the value that it holds in the end.
        crossing_elements: Elements that devices are sent which do not hold them.
        copied_elements: Elements that further devices copy from those.
    """

    held: Mapping[int, int]
    phases: tuple[Phase, ...]
    shards: Mapping[int, int]
    crossing_elements: int
    copied_elements: int


def route_once(
    source: Mapping[int, Box], destination: Mapping[int, Box], processes: Sequence[int]
) -> Route:
    """Return the route on which each distinct tile crosses once, as `homed_tiles` says.

    Of the devices that copy a tile, those of another process than the tile's home get it once for
    the process, and copy it from there.

    Args:
        source: The box that each device holds; together they are the whole tensor.
        destination: The box that each device needs.
        processes: For each device the number of its process.
    """
    return _Route(source, homed_tiles(source, destination)).found(processes)


class _Route:
    """A route while it grows; lives only inside `route_once`."""

    def __init__(self, source: Mapping[int, Box], tiles: Sequence[HomedTile]) -> None:
        self.source, self.tiles = source, tiles
        self.held = {device: n for n, device in enumerate(source)}
        self.count = len(source)
        self.shards: dict[int, int] = {}

    def new(self) -> int:
        self.count += 1
        return self.count - 1

    def found(self, processes: Sequence[int]) -> Route:
        first = self.to_homes()
        near, far = self.copies(processes)
        phases = (first, Phase((), tuple(near), ()), Phase((), tuple(far), ()))
        return Route(
            held=self.held,
            phases=tuple(phase for phase in phases if any(phase)),
            shards=self.shards,
            crossing_elements=sum(tile.crossing_elements for tile in self.tiles),
            copied_elements=sum(num_elements(t.box) * len(t.copies) for t in self.tiles),
        )

    def to_homes(self) -> Phase:
        """Bring the pieces of each tile to its home, where they are joined."""
        cuts, at = self.cuts()
        moves: list[Move] = []
        joins: list[Join] = []
        for tile in self.tiles:
            pieces: list[int] = []
            for piece in tile.pieces:
                value = at[piece.box, piece.sender]
                if piece.sender != tile.home:
                    shape = box_shape(piece.box)
                    moves.append(Move(value, piece.sender, tile.home, self.new(), shape))
                    value = moves[-1].result
                pieces.append(value)
            self.shards[tile.home] = pieces[0]
            if len(pieces) > 1:
                places = tuple(within(p.box, tile.box) for p in tile.pieces)
                joins.append(Join(tile.home, tuple(pieces), places, self.new()))
                self.shards[tile.home] = joins[-1].result
            self.shards.update((device, self.held[device]) for device in tile.owners)
        return Phase(cuts, tuple(moves), tuple(joins))

    def cuts(self) -> tuple[tuple[Cut, ...], dict[tuple[Box, int], int]]:
        """Return a cut for each device that sends parts of its tile, and where each piece is."""
        wanted: dict[int, dict[Box, None]] = {}
        for tile in self.tiles:
            for piece in tile.pieces:
                wanted.setdefault(piece.sender, {})[piece.box] = None
        cuts: list[Cut] = []
        at: dict[tuple[Box, int], int] = {}
        for sender, boxes in wanted.items():
            whole = self.source[sender]
            at[whole, sender] = self.held[sender]
            parts = [box for box in boxes if box != whole]
            if parts:
                results = tuple(self.new() for _ in parts)
                places = tuple(within(box, whole) for box in parts)
                cuts.append(Cut(sender, self.held[sender], places, results))
                at.update(((box, sender), n) for box, n in zip(parts, results, strict=True))
        return tuple(cuts), at

    def copies(self, processes: Sequence[int]) -> tuple[list[Move], list[Move]]:
        """Return copies from the homes of tiles, and copies inside processes that got one."""
        near: list[Move] = []
        far: list[Move] = []
        for tile in self.tiles:
            # For each process the device from which others of it copy.
            nearest = {processes[tile.home]: tile.home}
            for device in tile.copies:
                process = processes[device]
                is_first = process not in nearest
                source = tile.home if is_first else nearest[process]
                nearest.setdefault(process, device)
                moves = near if source == tile.home else far
                value, shape = self.shards[source], box_shape(tile.box)
                moves.append(Move(value, source, device, self.new(), shape))
                self.shards[device] = moves[-1].result
        return near, far
