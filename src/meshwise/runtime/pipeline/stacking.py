"""Stacks of layers between steps: one array for the user, one for each layer while a step runs.

Where all stages hold equally many layers of a stack in equal layouts, the stack is split over the
stages along the dim of the layers, and no byte leaves its device.  Else it is spread evenly over
all devices of these stages along another dim, and moves to the stages and back in each step: JAX
has no arrays whose shards are unequal.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from meshwise.runtime.devices import array_of, has_devices_here
from meshwise.runtime.transports.tile_copier import TileCopier
from meshwise.units import counted

STAGES, SPREAD = "stages", "spread"


@dataclass(frozen=True, slots=True, kw_only=True)
class StackHome:
    """Where a stack lives between steps.

    Attributes:
        dim: The dim of the layers.
        count: Number of layers.
        sharding: The sharding of the stack.
        runs: For each stage its number of layers and the sharding of its part of the stack; none
            where the stack is spread over all devices.
        members: Sharding of each layer while a step runs.
    """

    dim: int
    count: int
    sharding: NamedSharding
    runs: tuple[tuple[int, NamedSharding], ...]
    members: tuple[NamedSharding, ...]


def home_of(dim: int, shape: Sequence[int], members: Sequence[NamedSharding]) -> StackHome:
    """Return where a stack lives.

    Args:
        dim: The dim of the layers.
        shape: The shape of one layer.
        members: Where each layer is while a step runs.
    """
    groups = [list(g) for _, g in itertools.groupby(members, key=lambda s: s.mesh)]
    meshes: list[Any] = [g[0].mesh for g in groups]
    specs = {_entries(s.spec, len(shape)) for s in members}
    is_even = (
        len({(len(g), m.devices.shape, m.axis_names) for g, m in zip(groups, meshes, strict=True)})
        == 1
    )
    is_once = len(set(meshes)) == len(meshes)
    if len(specs) > 1 or not is_even or not is_once:
        sharding, runs = _spread(dim, shape, meshes), ()
    else:
        (entries,) = specs
        alone = _with_entry(entries, dim, None)
        runs = tuple((len(g), NamedSharding(g[0].mesh, alone)) for g in groups)
        sharding = runs[0][1]
        if len(groups) > 1:
            devices = np.stack([mesh.devices for mesh in meshes])
            union = Mesh(devices, (STAGES, *meshes[0].axis_names))
            sharding = NamedSharding(union, _with_entry(entries, dim, STAGES))
    return StackHome(
        dim=dim, count=len(members), sharding=sharding, runs=runs, members=tuple(members)
    )


def _spread(dim: int, shape: Sequence[int], meshes: Sequence[Any]) -> NamedSharding:
    """Even parts on all devices, along the largest dim that can be divided; else copies."""
    devices = list(dict.fromkeys(d for mesh in meshes for d in mesh.devices.flat))
    whole = [*shape]
    sizes = [(size, -n) for n, size in enumerate(whole) if size and size % len(devices) == 0]
    entries: list[Any] = [None] * len(whole)
    if sizes:
        entries[-max(sizes)[1]] = SPREAD
    return NamedSharding(Mesh(np.array(devices), (SPREAD,)), _with_entry(entries, dim, None))


def _entries(spec: PartitionSpec, rank: int) -> tuple[Any, ...]:
    return (*spec, *[None] * (rank - len(spec)))


def _with_entry(entries: Sequence[Any], dim: int, entry: Any) -> PartitionSpec:
    return PartitionSpec(*entries[:dim], entry, *entries[dim:])


class Stacking:
    """Takes stacks apart and puts them together; equal ones with one executable."""

    def __init__(self, copier: TileCopier) -> None:
        """Nothing is compiled yet.

        Args:
            copier: Moves layers and stacks.
        """
        self._compiled: dict[Hashable, Callable[..., Any]] = {}
        self._copier = copier

    def side_by_side(self, dim: int, members: Sequence[Any]) -> Any:
        """Return a stack where the first of the layers is."""
        near = [self._copier.put(member, members[0].sharding) for member in members]
        return jnp.stack(near, axis=dim)

    def apart(self, home: StackHome, value: Any) -> list[Any]:
        """Return the layers of a stack, wherever it is.

        Args:
            home: Where the stack lives between steps.
            value: The stack; it stays as it is.
        """
        if value.shape[home.dim] != home.count:
            raise ValueError(f"not {counted(home.count, 'layer')} but {value.shape[home.dim]}")
        if self._copier.is_part(value):
            value = self._copier.put(value, home.sharding)
        if not isinstance(value, jax.Array) or value.sharding != home.sharding:
            return [value[(*[slice(None)] * home.dim, k)] for k in range(home.count)]
        if not home.runs:
            alone = _dropped(home.sharding, home.dim)
            return list(self._split(home, home.count, alone)(value))
        found: list[Any] = []
        for (count, sharding), part in zip(home.runs, _parts(home, value), strict=True):
            shape = (*value.shape[: home.dim], count, *value.shape[home.dim + 1 :])
            stack = array_of(jax.ShapeDtypeStruct(shape, value.dtype, sharding=sharding), part)
            found += self._split(home, count, home.members[len(found)])(stack)
        return found

    def together(self, home: StackHome, members: Sequence[Any]) -> Any:
        """Return the stack of layers."""
        if not home.runs:
            alone = _dropped(home.sharding, home.dim)
            given = [self._copier.put(member, alone) for member in members]
            return self._join(home, home.count, home.sharding)(*given)
        rest = iter(map(self._copier.put, members, home.members))
        parts = [
            self._join(home, count, sharding)(*itertools.islice(rest, count))
            for count, sharding in home.runs
        ]
        shape = list(parts[0].shape)
        shape[home.dim] = home.count
        shards = [shard.data for part in parts for shard in part.addressable_shards]
        whole = jax.ShapeDtypeStruct(tuple(shape), parts[0].dtype, sharding=home.sharding)
        return array_of(whole, shards)

    def _split(self, home: StackHome, count: int, sharding: NamedSharding) -> Callable[..., Any]:
        def split(value: Any) -> list[Any]:
            return [lax.index_in_dim(value, k, home.dim, keepdims=False) for k in range(count)]

        key = "split", home.dim, count, sharding
        return self._program(key, split, [sharding] * count)

    def _join(self, home: StackHome, count: int, sharding: NamedSharding) -> Callable[..., Any]:
        def join(*members: Any) -> Any:
            return jnp.stack(members, axis=home.dim)

        key = "join", home.dim, count, sharding
        return self._program(key, join, sharding)

    def _program(
        self, key: Hashable, function: Callable[..., Any], out_shardings: Any
    ) -> Callable[..., Any]:
        """Return a function as a program; without devices in this process it runs nothing."""
        if key not in self._compiled:
            first = jax.tree.leaves(out_shardings)[0]
            program = jax.jit(function, out_shardings=out_shardings)
            if not has_devices_here(first.mesh):
                program = partial(_elsewhere, function, out_shardings)
            self._compiled[key] = program
        return self._compiled[key]


def _dropped(sharding: NamedSharding, dim: int) -> NamedSharding:
    entries = list(sharding.spec)
    del entries[dim]
    return NamedSharding(sharding.mesh, PartitionSpec(*entries))


def _parts(home: StackHome, value: Any) -> list[list[Any]]:
    """For each run the shards of a stack on its devices, in their order."""
    at = {shard.device: shard.data for shard in value.addressable_shards}
    meshes: list[Any] = [sharding.mesh for _, sharding in home.runs]
    return [[at[d] for d in mesh.devices.flat if d in at] for mesh in meshes]


def _elsewhere(function: Callable[..., Any], out_shardings: Any, *args: Any) -> Any:
    """Return the results of a function that other processes compute."""

    def without(aval: jax.ShapeDtypeStruct, sharding: NamedSharding) -> jax.Array:
        return array_of(jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding), [])

    return jax.tree.map(without, jax.eval_shape(function, *args), out_shardings)
