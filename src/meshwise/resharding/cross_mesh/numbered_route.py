"""Pieces that go from device to device as a route: values get numbers, and steps their phases."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from meshwise.resharding.route import Cut, Join, Move, Phase, Route, Signal
from meshwise.resharding.tiles import Box, box_shape, num_elements, within

# Pieces with the devices to which they come.
Arrivals: TypeAlias = tuple[tuple[Box, int], ...]


class Hop(NamedTuple):
    """A piece that goes from device to device.

    Attributes:
        box: The elements.
        source: The device that has it, from the source or by an earlier hop.
        destination: The device that gets it.
        waits: Pieces with the devices to which they must have come before it leaves; only of what
            comes by no earlier hop.
    """

    box: Box
    source: int
    destination: int
    waits: Arrivals = ()


class JoinedTile(NamedTuple):
    """A tile that a device puts together.

    Attributes:
        box: The elements.
        device: The device; what of the pieces no hop brings it holds.
        pieces: What it consists of.
    """

    box: Box
    device: int
    pieces: tuple[Box, ...]


def numbered_route(
    source: Mapping[int, Box], hops: Sequence[Hop], tiles: Sequence[JoinedTile]
) -> Route:
    """Return the route of hops and tiles.

    A hop is in a phase after that of what it passes on, and in none before that of the hop before
    it, so each process carries its hops out in their order.

    Args:
        source: The box that each device holds.
        hops: What goes from device to device, in the order in which it begins.
        tiles: What is put together of it.
    """
    return _Numbering(source).found(hops, tiles)


class _Numbering:
    """A route while it grows; lives only inside `numbered_route`."""

    def __init__(self, source: Mapping[int, Box]) -> None:
        self.source = source
        self.count = itertools.count(len(source))
        self.held = {device: n for n, device in enumerate(source)}
        # For each piece on a device its number, and the phase that made it; -1: there at first.
        self.at: dict[tuple[Box, int], int] = {}
        self.made: dict[tuple[Box, int], int] = {}
        self.cuts: dict[int, list[Cut]] = {}
        self.moves: dict[int, list[Move]] = {}
        self.signals: dict[int, list[Signal]] = {}
        self.joins: dict[int, list[Join]] = {}
        self.shards: dict[int, int] = {}

    def found(self, hops: Sequence[Hop], tiles: Sequence[JoinedTile]) -> Route:
        self.cut_free_pieces(hops, tiles)
        crossing, copied = self.move(hops)
        for tile in tiles:
            self.join(tile)
        last = max((0, *self.moves, *self.joins))
        phases = [
            Phase(
                tuple(self.cuts.get(n, ())),
                tuple(self.moves.get(n, ())),
                tuple(self.joins.get(n, ())),
                tuple(self.signals.get(n, ())),
            )
            for n in range(last + 1)
        ]
        return Route(
            held=self.held,
            phases=tuple(phase for phase in phases if any(phase)),
            shards=self.shards,
            crossing_elements=crossing,
            copied_elements=copied,
        )

    def cut_free_pieces(self, hops: Sequence[Hop], tiles: Sequence[JoinedTile]) -> None:
        """Cut what comes by no hop and waits for nothing out of what devices hold."""
        comes = {(hop.box, hop.destination) for hop in hops}
        needed = [(hop.box, hop.source) for hop in hops if not hop.waits]
        needed += [(piece, tile.device) for tile in tiles for piece in tile.pieces]
        wanted: dict[int, dict[Box, None]] = {}
        for box, device in needed:
            if (box, device) not in comes:
                wanted.setdefault(device, {})[box] = None
        for device, boxes in wanted.items():
            whole = self.source[device]
            self.at[whole, device] = self.held[device]
            parts = [box for box in boxes if box != whole]
            if parts:
                self.at.update(self.cut(0, device, parts))

    def cut(
        self, phase: int, device: int, parts: Sequence[Box], after: tuple[int, ...] = ()
    ) -> dict[tuple[Box, int], int]:
        """Cut parts out of what a device holds; return their numbers."""
        results = tuple(next(self.count) for _ in parts)
        places = tuple(within(box, self.source[device]) for box in parts)
        cut = Cut(device, self.held[device], places, results, after)
        self.cuts.setdefault(phase, []).append(cut)
        return {(box, device): n for box, n in zip(parts, results, strict=True)}

    def move(self, hops: Sequence[Hop]) -> tuple[int, int]:
        """Give hops their phases; return the elements of first hops, and of later ones."""
        crossing = copied = latest = 0
        # What is cut out later than at first: what a device holds may be sent more than once.
        late: dict[tuple[Box, int], int] = {}
        waiting: dict[tuple[int, Arrivals], dict[Box, None]] = {}
        for hop in hops:
            if hop.waits:
                waiting.setdefault((hop.source, hop.waits), {})[hop.box] = None
        for hop in hops:
            if parts := waiting.pop((hop.source, hop.waits), None):
                latest = max(latest, *(1 + self.made[came] for came in hop.waits))
                after = self.signal(latest, hop)
                latest += 1
                late.update(self.cut(latest, hop.source, list(parts), after))
            came = self.made.get((hop.box, hop.source), -1)
            latest = max(latest, came + 1)
            if came < 0:
                crossing += num_elements(hop.box)
            else:
                copied += num_elements(hop.box)
            value = (late if hop.waits else self.at)[hop.box, hop.source]
            made = next(self.count)
            move = Move(value, hop.source, hop.destination, made, box_shape(hop.box))
            self.moves.setdefault(latest, []).append(move)
            self.at[hop.box, hop.destination] = made
            self.made[hop.box, hop.destination] = latest
        return crossing, copied

    def signal(self, phase: int, hop: Hop) -> tuple[int, ...]:
        """Tell the device of a hop that what it waits for has come; return what it then has.

        What has come to the device itself is there without a signal.
        """
        found: list[int] = []
        for box, device in hop.waits:
            value = self.at[box, device]
            if device != hop.source:
                signal = Signal(value, device, hop.source, next(self.count), len(box))
                self.signals.setdefault(phase, []).append(signal)
                value = signal.result
            found.append(value)
        return tuple(found)

    def join(self, tile: JoinedTile) -> None:
        """Put a tile together as soon as its pieces are there."""
        values = tuple(self.at[piece, tile.device] for piece in tile.pieces)
        self.shards[tile.device] = values[0]
        if len(values) > 1:
            last = max(self.made.get((piece, tile.device), 0) for piece in tile.pieces)
            places = tuple(within(piece, tile.box) for piece in tile.pieces)
            join = Join(tile.device, values, places, next(self.count))
            self.joins.setdefault(last, []).append(join)
            self.shards[tile.device] = join.result
