"""Arrays between meshes of one process, tile by tile, without waiting for anything.

`jax.device_put` to another mesh gathers the array on the host, and waits for whoever computes it,
unless each tile of the destination is a whole tile of the source; and it sends every copy.  Here a
device that has a piece of a tile cuts it out, the home of the tile gets the pieces and puts them
together, and further copies are made from there (`resharding.once`).  Every step is dispatched and
none waited for.  What is to be done for a shape and two shardings is found out once, and the small
programs that cut and join are compiled once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import NamedSharding

from meshwise.errors import TransportError
from meshwise.resharding.once import HomedTile, homed_tiles
from meshwise.resharding.tiles import Box, num_elements

# A jitted function of tiles on one device.
Program: TypeAlias = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """How arrays of one shape get from one sharding to another.

    Values are numbered: first the tiles of the source, then what each step makes.

    Attributes:
        crossing_bytes: That devices are sent which do not hold them.
        copied_bytes: That further devices of the destination copy from those.
        cuts: Programs on single devices that make pieces: the program, and which value it takes.
        crossings: Values that move, and where to.
        joins: Programs that make tiles of pieces: the program, and which values it takes.
        replicas: Values that are copied, and where to.
        shards: For each device of the destination the value that lies there.
        shared: Places among `shards` of tiles of the source.
    """

    crossing_bytes: int
    copied_bytes: int
    cuts: tuple[tuple[Program, int], ...]
    crossings: tuple[tuple[int, ...], tuple[Any, ...]]
    joins: tuple[tuple[Program, tuple[int, ...]], ...]
    replicas: tuple[tuple[int, ...], tuple[Any, ...]]
    shards: tuple[int, ...]
    shared: tuple[int, ...]


class TileCopier:
    """Moves arrays; what it found out and compiled serves all later ones of the same kind."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._copies: dict[tuple[Any, ...], Copies] = {}
        self._programs: dict[tuple[Any, ...], Program] = {}

    def put(
        self, value: Array | np.generic, sharding: NamedSharding, *, own_memory: bool = False
    ) -> Array:
        """Return an array in a sharding.

        Random keys, which are no arrays of numbers, go as `jax.device_put` sends them.

        Args:
            value: An array of any placement in this process, pending or not, or what becomes one.
            sharding: Where it goes; devices may be on both sides.
            own_memory: Whether the result shares no memory with `value`; else it may be `value`.

        Raises:
            TransportError: part of the array is in another process.
        """
        if not isinstance(value, jax.Array):
            return jax.device_put(value, sharding, may_alias=False if own_memory else None)
        if value.sharding == sharding and not own_memory:
            return value
        if jnp.issubdtype(value.dtype, jax.dtypes.extended):
            # `device_put` shares memory on devices of both sides, whatever it is told.
            return jax.device_put(jnp.copy(value) if own_memory else value, sharding)
        if not value.size:
            # Nothing to move, and no reason to wait.
            return jax.device_put(np.zeros(value.shape, value.dtype), sharding)
        copies = self.copies(value, sharding)
        values = [shard.data for shard in value.addressable_shards]
        for program, given in copies.cuts:
            values += program(values[given])
        moved, places = copies.crossings
        if moved:
            values += jax.device_put([values[n] for n in moved], list(places))
        values += [program(*(values[n] for n in given)) for program, given in copies.joins]
        copied, places = copies.replicas
        if copied:
            values += jax.device_put([values[n] for n in copied], list(places))
        shards = [values[n] for n in copies.shards]
        if own_memory:
            for n in copies.shared:
                shards[n] = jnp.copy(shards[n])
        return jax.make_array_from_single_device_arrays(value.shape, sharding, shards)

    def copies(self, value: jax.Array, sharding: NamedSharding) -> Copies:
        """Return what is done for an array.

        Raises:
            TransportError: part of the array is in another process.
        """
        key = value.shape, value.dtype, value.sharding, sharding
        found = self._copies.get(key)
        if found is None:
            found = self._copies[key] = _found(self, value, sharding)
        return found

    def cutter(self, parts: tuple[Box, ...]) -> Program:
        """Return the program that takes parts, given by their places in its operand."""

        def cut(tile: Array) -> list[Array]:
            return [lax.slice(tile, *zip(*part, strict=True)) for part in parts]

        return self._programs.setdefault(("cut", parts), jax.jit(cut))

    def joiner(self, counts: tuple[int, ...]) -> Program:
        """Return the program that makes one tile of a grid of pieces, so many along each dim."""

        def join(*pieces: Array) -> Array:
            rest = list(pieces)
            for dim in reversed(range(len(counts))):
                starts = range(0, len(rest), counts[dim])
                rest = [lax.concatenate(rest[n : n + counts[dim]], dim) for n in starts]
            return rest[0]

        return self._programs.setdefault(("join", counts), jax.jit(join))


def _found(copier: TileCopier, value: jax.Array, sharding: NamedSharding) -> Copies:
    """Return what is done for an array: steps in the order in which they need one another."""
    if not (value.is_fully_addressable and sharding.is_fully_addressable):
        raise TransportError(
            f"an array of shape {list(value.shape)} goes from {value.sharding} to {sharding}: both "
            "must lie on devices of this process"
        )
    shape = value.shape
    held = {shard.device: _box(shard.index, shape) for shard in value.addressable_shards}
    indices: Mapping[Any, Any] = sharding.addressable_devices_indices_map(tuple(shape))
    needed = {d: _box(i, shape) for d, i in indices.items()}
    devices = list(dict.fromkeys((*held, *needed)))
    number = {d: n for n, d in enumerate(devices)}
    source = {number[d]: box for d, box in held.items()}
    tiles = homed_tiles(source, {number[d]: box for d, box in needed.items()})

    count = len(held)
    cuts, piece_at, count = _cuts(copier, source, tiles, count)
    crossings: list[tuple[int, int]] = []
    at_home: dict[tuple[Box, int], int] = {}
    for tile in tiles:
        for piece in tile.pieces:
            at_home[piece.box, tile.home] = piece_at[piece.box, piece.sender]
            if piece.sender != tile.home:
                crossings.append((piece_at[piece.box, piece.sender], tile.home))
                at_home[piece.box, tile.home] = count
                count += 1
    joins: list[tuple[Program, tuple[int, ...]]] = []
    lies: dict[int, int] = {}
    for tile in tiles:
        pieces = tuple(at_home[p.box, tile.home] for p in tile.pieces)
        lies[tile.home] = pieces[0]
        if len(pieces) > 1:
            counts = tuple(len({p.box[dim] for p in tile.pieces}) for dim in range(len(shape)))
            joins.append((copier.joiner(counts), pieces))
            lies[tile.home] = count
            count += 1
        lies.update((device, device) for device in tile.owners)
    replicas = [(lies[tile.home], device) for tile in tiles for device in tile.copies]
    lies.update((device, count + n) for n, (_, device) in enumerate(replicas))
    shards = tuple(lies[number[d]] for d in needed)
    size = value.dtype.itemsize
    return Copies(
        crossing_bytes=size * sum(tile.crossing_elements for tile in tiles),
        copied_bytes=size * sum(num_elements(t.box) * len(t.copies) for t in tiles),
        cuts=cuts,
        crossings=_columns(crossings, devices),
        joins=tuple(joins),
        replicas=_columns(replicas, devices),
        shards=shards,
        shared=tuple(n for n, v in enumerate(shards) if v < len(held)),
    )


def _cuts(
    copier: TileCopier, source: Mapping[int, Box], tiles: Sequence[HomedTile], count: int
) -> tuple[tuple[tuple[Program, int], ...], dict[tuple[Box, int], int], int]:
    """One program for each device that sends parts of its tile.

    Returns:
        The programs, the value of each piece by box and sender, and how many values there are.
    """
    wanted: dict[int, dict[Box, None]] = {}
    for tile in tiles:
        for piece in tile.pieces:
            wanted.setdefault(piece.sender, {})[piece.box] = None
    cuts: list[tuple[Program, int]] = []
    piece_at: dict[tuple[Box, int], int] = {}
    for sender, found in wanted.items():
        whole = source[sender]
        piece_at[whole, sender] = sender
        parts = [box for box in found if box != whole]
        if parts:
            cuts.append((copier.cutter(tuple(_within(box, whole) for box in parts)), sender))
            piece_at.update(((box, sender), count + n) for n, box in enumerate(parts))
            count += len(parts)
    return tuple(cuts), piece_at, count


def _columns(
    moves: Sequence[tuple[int, int]], devices: Sequence[Any]
) -> tuple[tuple[int, ...], tuple[Any, ...]]:
    return tuple(value for value, _ in moves), tuple(devices[number] for _, number in moves)


def _box(index: Sequence[slice], shape: Sequence[int]) -> Box:
    """Return an index as JAX gives it."""
    found = (part.indices(size) for part, size in zip(index, shape, strict=True))
    return tuple((start, stop) for start, stop, _ in found)


def _within(box: Box, whole: Box) -> Box:
    """Return a box by its place in a larger one."""
    return tuple((a - first, b - first) for (a, b), (first, _) in zip(box, whole, strict=True))
