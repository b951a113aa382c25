"""Arrays between meshes, tile by tile, without waiting for anything.

`jax.device_put` to another mesh gathers the array on the host, and waits for whoever computes it,
unless each tile of the destination is a whole tile of the source; and it sends every copy.  Here a
device that has a piece of a tile cuts it out, the home of the tile gets the pieces and puts them
together, and further copies are made from there (`resharding.route`).  Every step is dispatched and
none waited for.  What is to be done for a shape and two shardings is found out once, and the small
programs that cut and join are compiled once.

A transfer may be told a strategy (`resharding.cross_mesh`), which says how it passes between hosts;
by default each tile crosses once, to its home.

In a job of several processes each carries out the steps of its own devices, and what passes between
processes goes by a transport.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import NamedSharding, SingleDeviceSharding

from meshwise.errors import TransportError
from meshwise.jax_compat.arrays import HOST_MEMORY
from meshwise.resharding.cross_mesh.planned_route import planned_route
from meshwise.resharding.cross_mesh.sending import Sending
from meshwise.resharding.route import Phase, Route, route_once
from meshwise.resharding.tiles import Box, num_elements, overlap
from meshwise.resharding.verify_route import verify_route
from meshwise.runtime.devices import array_of
from meshwise.runtime.host_rows import HostRows
from meshwise.runtime.placement import Argument, placed
from meshwise.runtime.transports.copies import (
    Copies,
    LocalPhase,
    Program,
    Rows,
    SourceTile,
    part_of,
    parts_of_signal,
    values_taken,
)
from meshwise.runtime.transports.joined_pieces import joined
from meshwise.runtime.transports.places import boxes_of, of_numbers
from meshwise.runtime.transports.transport import Passage, Transport, key_of


def process_of(device: Any) -> int:
    """Return the number of the process of a device."""
    return device.process_index


class TileCopier:
    """Moves arrays; what it found out and compiled serves all later ones of the same kind."""

    def __init__(
        self, transport: Transport | None = None, host_of: Callable[[Any], int] = process_of
    ) -> None:
        """Nothing is known yet.

        Args:
            transport: The way between processes; None: all devices are of this process.
            host_of: Returns the number of a device's host, for strategies; by default the number of
                its process.
        """
        self._transport = transport
        self._host_of = host_of
        self._process = None if transport is None else transport.process
        self._is_collective = transport is not None and transport.is_collective
        self._count = itertools.count()
        self._copies: dict[tuple[Any, ...], Copies] = {}
        self._programs: dict[tuple[Any, ...], Program] = {}

    def put(
        self,
        value: Argument,
        sharding: NamedSharding,
        *,
        rows: Rows | None = None,
        own_memory: bool = False,
        is_overwritten: bool = True,
        label: str | None = None,
        sending: Sending | None = None,
    ) -> Array:
        """Return an array, or rows of it, in a sharding.

        Random keys, which are no arrays of numbers, go as `jax.device_put` sends them.  In a job
        every process that has devices on one of both sides makes the same call; for a collective
        transport every process does, in one order.

        Args:
            value: An array of any placement, pending or not, or what becomes one.  In a job an
                array without a mesh is the same in every process.
            sharding: Where it goes; devices may be on both sides.
            rows: Those that go; None for all.
            own_memory: Whether the result shares no memory with `value`; else it may be `value`.
            is_overwritten: Whether `value` may be donated or deleted before another process has
                what is sent to it, which is then a copy.
            label: What it is: tells it from all others that pass between the same processes; None:
                it is counted, and every process makes such calls in the same order.
            sending: How it passes between hosts; None: each tile crosses once.

        Raises:
            TransportError: part of the array is in another process, and there is no way there.
            DataError: rows that lie on devices of this process are not in it.
        """
        if (
            rows is None
            and not own_memory
            and isinstance(value, jax.Array)
            and value.sharding == sharding
        ):
            return value
        found = self._put(
            _on_devices(value),
            _with_device_memory(sharding),
            rows=rows,
            own_memory=own_memory,
            is_overwritten=is_overwritten,
            label=label,
            sending=sending,
        )
        return found if sharding.memory_kind != HOST_MEMORY else jax.device_put(found, sharding)

    def _put(
        self,
        value: Argument,
        sharding: NamedSharding,
        *,
        rows: Rows | None,
        own_memory: bool,
        is_overwritten: bool,
        label: str | None,
        sending: Sending | None,
    ) -> Array:
        """`put` between the memories of devices."""
        is_part = self._transport is None or self.is_part(value)
        if not isinstance(value, jax.Array) or not is_part:
            return self._put_host(_taken(value, rows), sharding, own_memory=own_memory)
        if rows is None and value.sharding == sharding and not own_memory:
            return value
        if label is None:
            label = f"array {next(self._count)}"
        if jnp.issubdtype(value.dtype, jax.dtypes.extended):
            return self._put_keys(
                value, sharding, rows, own_memory=own_memory, label=label, sending=sending
            )
        shape = _shape(value, rows)
        if not math.prod(shape):
            # Nothing to move, and no reason to wait.
            return placed([np.zeros(shape, value.dtype)], [sharding])[0]
        copies = self.copies(value, sharding, sending, rows)
        shards = value.addressable_shards
        values: dict[int, Array] = {}
        for tile in copies.source:
            data = shards[tile.shard].data
            values[tile.value] = tile.program(data, tile.starts) if tile.program else data
        if is_overwritten:
            for n in copies.passed_on:
                values[n] = jnp.copy(values[n])
        for phase in copies.phases:
            self._carry_out(phase, values, copies.devices, value.dtype, label)
        found = [values[n] for n in copies.shards]
        if own_memory:
            for n in copies.shared:
                found[n] = jnp.copy(found[n])
        whole = jax.ShapeDtypeStruct(shape, value.dtype, sharding=sharding)
        return array_of(whole, found)

    def is_part(self, value: Argument) -> bool:
        """Return whether a process of a job has only its part of a value, or nothing.

        The answer is the same in every process.  Any other value is whole in all of them.

        Args:
            value: The value.
        """
        if not isinstance(value, jax.Array):
            return False
        if self._transport is None:
            return not value.is_fully_addressable
        return not isinstance(value.sharding, SingleDeviceSharding)

    def takes_part(self, value: Argument) -> bool:
        """Return whether this process helps to bring a value to devices of other processes.

        Args:
            value: The value.
        """
        if not isinstance(value, jax.Array) or not self.is_part(value):
            return False
        return self._is_collective or bool(value.addressable_shards)

    def abandon(self, error: BaseException) -> None:
        """Tell the transport that this process failed; see `Transport.abandon`.

        Args:
            error: Why.
        """
        if self._transport is not None:
            self._transport.abandon(error)

    def _put_host(self, value: Argument, sharding: NamedSharding, *, own_memory: bool) -> Array:
        """Return what this process has of an array, or the whole array, in a sharding."""
        if not sharding.is_fully_addressable:
            return placed([value], [sharding])[0]
        given = value.whole() if isinstance(value, HostRows) else value
        return jax.device_put(given, sharding, may_alias=False if own_memory else None)

    def _put_keys(
        self,
        value: Array,
        sharding: NamedSharding,
        rows: Rows | None,
        *,
        own_memory: bool,
        label: str,
        sending: Sending | None,
    ) -> Array:
        if self._transport is None:
            # `device_put` shares memory on devices of both sides, whatever it is told.
            given = jnp.copy(value) if own_memory and rows is None else _taken(value, rows)
            return jax.device_put(given, sharding)
        spec = jax.ShapeDtypeStruct(value.shape, value.dtype)
        numbers = jax.eval_shape(jax.random.key_data, spec)
        there = of_numbers(sharding, numbers.ndim)
        if value.addressable_shards:
            data = jax.random.key_data(value)
        else:
            assert isinstance(value.sharding, NamedSharding)
            source = of_numbers(value.sharding, numbers.ndim)
            data = array_of(jax.ShapeDtypeStruct(numbers.shape, numbers.dtype, sharding=source), [])
        found = self.put(
            data, there, rows=rows, own_memory=own_memory, label=label, sending=sending
        )
        if found.addressable_shards:
            return jax.random.wrap_key_data(found, impl=str(jax.random.key_impl(value)))
        shape = _shape(value, rows)
        return array_of(jax.ShapeDtypeStruct(shape, value.dtype, sharding=sharding), [])

    def _carry_out(
        self,
        phase: LocalPhase,
        values: dict[int, Array],
        devices: Sequence[Any],
        dtype: Any,
        label: str,
    ) -> None:
        """Dispatch a phase."""
        for program, given, results in phase.cuts:
            made = program(*(values[n] for n in given))
            values.update(zip(results, made, strict=True))
        moved, places, results = phase.moves
        if moved:
            copies = jax.device_put([values[n] for n in moved], list(places))
            values.update(zip(results, copies, strict=True))
        if phase.passages:
            assert self._transport is not None
            passages = [
                Passage(
                    key=key_of(label, move, str(dtype)),  # the copy has one number in the route
                    shape=move.shape,
                    dtype=dtype,
                    source=devices[move.source],
                    destination=devices[move.destination],
                    value=values.get(move.value),
                )
                for move in phase.passages
            ]
            arrived = self._transport.pass_all(passages, label)
            for move, array in zip(phase.passages, arrived, strict=True):
                if array is not None:
                    values[move.result] = array
        for program, given, result in phase.joins:
            values[result] = program(*(values[n] for n in given))

    def copies(
        self,
        value: jax.Array,
        sharding: NamedSharding,
        sending: Sending | None = None,
        rows: Rows | None = None,
    ) -> Copies:
        """Return what is done for an array, or rows of it.

        Args:
            value: The array.
            sharding: Where it goes.
            sending: How it passes between hosts; None: each tile crosses once.
            rows: Those that go; None for all.

        Raises:
            TransportError: part of the array is in another process, and there is no way there.
        """
        key = value.shape, value.dtype, value.sharding, sharding, sending, rows
        found = self._copies.get(key)
        if found is None:
            found = self._copies[key] = self._found(value, sharding, sending, rows)
        return found

    def _found(
        self,
        value: jax.Array,
        sharding: NamedSharding,
        sending: Sending | None,
        rows: Rows | None,
    ) -> Copies:
        is_here = value.is_fully_addressable and sharding.is_fully_addressable
        if self._transport is None and not is_here:
            raise TransportError(
                f"an array of shape {list(value.shape)} goes from {value.sharding} to {sharding}: "
                "both must lie on devices of this process"
            )
        wanted = None if rows is None else rows.box(value.shape)
        whole = boxes_of(value.sharding, value.shape)
        there = {d: p for d, box in whole.items() if num_elements(p := part_of(box, wanted))}
        boxes = there, boxes_of(sharding, _shape(value, rows))
        devices = tuple(dict.fromkeys(itertools.chain(*boxes)))
        number = {d: n for n, d in enumerate(devices)}
        source, destination = ({number[d]: box for d, box in side.items()} for side in boxes)
        size = value.dtype.itemsize
        if sending is None:
            route = route_once(source, destination, [process_of(device) for device in devices])
        else:
            hosts = [self._host_of(device) for device in devices]
            route = planned_route(source, destination, hosts, size, sending)
        verify_route(route, source, destination)
        mine = {n for d, n in number.items() if self._process in (None, d.process_index)}
        phases = self._phases(route, mine, devices)
        shards = tuple(route.shards[n] for n in destination if n in mine)
        used = set(shards).union(*(values_taken(phase) for phase in phases))
        tiles = [
            self._source_tile(n, route.held[number[s.device]], whole[s.device], wanted)
            for n, s in enumerate(value.addressable_shards)
            if s.device in there and route.held[number[s.device]] in used
        ]
        held = {tile.value for tile in tiles if tile.program is None}
        passed_on = {move.value for phase in phases for move in phase.passages}
        return Copies(
            crossing_bytes=size * route.crossing_elements,
            copied_bytes=size * route.copied_elements,
            devices=devices,
            source=tuple(tiles),
            phases=phases,
            shards=shards,
            shared=tuple(n for n, v in enumerate(shards) if v in held),
            passed_on=tuple(sorted(held & passed_on)),
        )

    def _source_tile(self, shard: int, number: int, box: Box, wanted: Box | None) -> SourceTile:
        """Return how the wanted part of a shard is had."""
        part = box if wanted is None else overlap(box, wanted)
        starts = np.array([a - first for (a, _), (first, _) in zip(part, box, strict=True)])
        program = None if part == box else self.taker(tuple(b - a for a, b in part))
        return SourceTile(
            shard=shard, value=number, program=program, starts=starts.astype(np.int32)
        )

    def _phases(
        self, route: Route, mine: set[int], devices: Sequence[Any]
    ) -> tuple[LocalPhase, ...]:
        found = (self._local(phase, mine, devices) for phase in route.phases)
        return tuple(p for p in found if p.cuts or p.moves[0] or p.passages or p.joins)

    def _local(self, phase: Phase, mine: set[int], devices: Sequence[Any]) -> LocalPhase:
        """Return what this process does of a phase."""
        cuts = [c for c in phase.cuts if c.device in mine]
        moves = list(phase.moves)
        for signal in phase.signals:
            cut, move = parts_of_signal(signal)
            moves.append(move)
            if signal.source in mine:
                cuts.append(cut)
        inside = [m for m in moves if m.source in mine and m.destination in mine]
        return LocalPhase(
            cuts=tuple(
                (self.cutter(c.parts, len(c.after)), (c.value, *c.after), c.results) for c in cuts
            ),
            moves=(
                tuple(m.value for m in inside),
                tuple(devices[m.destination] for m in inside),
                tuple(m.result for m in inside),
            ),
            passages=tuple(
                m
                for m in moves
                if process_of(devices[m.source]) != process_of(devices[m.destination])
                and (self._is_collective or m.source in mine or m.destination in mine)
            ),
            joins=tuple(
                (self.joiner(j.places), j.values, j.result) for j in phase.joins if j.device in mine
            ),
        )

    def taker(self, shape: tuple[int, ...]) -> Program:
        """Return the program that takes a part of a shape; where it begins is an argument.

        One program serves all micro-batches.
        """

        def take(tile: Array, starts: Array) -> Array:
            return lax.dynamic_slice(tile, list(starts), shape)

        return self._programs.setdefault(("take", shape), jax.jit(take))

    def cutter(self, parts: tuple[Box, ...], num_signals: int = 0) -> Program:
        """Return the program that takes parts, given by their places in its first operand.

        Its other operands, so many, are signals: it runs when they are there.
        """

        def cut(tile: Array, *signals: Array) -> list[Array]:
            if signals:
                # A part that is all of the tile must not be the tile itself, which is there now.
                tile, *_ = lax.optimization_barrier((tile, *signals))
            return [lax.slice(tile, [a for a, _ in part], [b for _, b in part]) for part in parts]

        key = "cut", parts, num_signals
        return self._programs.setdefault(key, jax.jit(cut, keep_unused=True))

    def joiner(self, places: tuple[Box, ...]) -> Program:
        """Return the program that puts pieces together, given by their places in the result."""

        def join(*pieces: Array) -> Array:
            return joined(list(zip(places, pieces, strict=True)))

        return self._programs.setdefault(("join", places), jax.jit(join))


def _on_devices(value: Argument) -> Argument:
    """Return an array in the memory of its devices; others as they are."""
    if not isinstance(value, jax.Array) or value.sharding.memory_kind != HOST_MEMORY:
        return value
    return jax.device_put(value, value.sharding.with_memory_kind("device"))


def _with_device_memory(sharding: NamedSharding) -> NamedSharding:
    if sharding.memory_kind != HOST_MEMORY:
        return sharding
    return NamedSharding(sharding.mesh, sharding.spec)


def _taken(value: Argument, rows: Rows | None) -> Argument:
    """Return rows of what this process has."""
    if rows is None:
        return value
    if isinstance(value, HostRows):
        return value.between(rows.start, rows.stop)
    assert isinstance(value, (jax.Array, np.ndarray))
    return value[(*[slice(None)] * rows.dim, slice(rows.start, rows.stop))]


def _shape(value: Array, rows: Rows | None) -> tuple[int, ...]:
    """Return the shape of rows of an array."""
    shape = list(value.shape)
    if rows is not None:
        shape[rows.dim] = rows.stop - rows.start
    return tuple(shape)
