"""Loops of one kind of work on all devices at once, as compiled programs.

Everything runs on every device at the same time, so that devices which share a host's cores,
memory or links are measured with their share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from meshwise.cluster.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    PERMUTE,
    REDUCE_SCATTER,
)
from meshwise.runtime.devices import Device
from meshwise.spmd.program import compile_options

_GROUPS, _GROUP = "groups", "group"
_ITEM_BYTES = 4


class TimedLoop:
    """A compiled loop; called with a number of turns it runs them and waits for their end."""

    def __init__(
        self, compiled: jax.stages.Compiled, whole: NamedSharding, operands: Sequence[jax.Array]
    ) -> None:
        self._compiled, self._whole, self._operands = compiled, whole, operands
        # Numbers of turns, on the devices before a clock is read that matters.
        self._counts: dict[int, jax.Array] = {}

    def __call__(self, turns: int) -> jax.Array:
        """Run a number of turns, and return the last result."""
        if turns not in self._counts:
            count = jax.device_put(jnp.int32(turns), self._whole)
            self._counts[turns] = jax.block_until_ready(count)
        return jax.block_until_ready(self._compiled(self._counts[turns], *self._operands))

    @property
    def compiled_text(self) -> str:
        """The optimised HLO."""
        return self._compiled.as_text() or ""


def matmul_loop(
    devices: Sequence[Device], dtype: str, size: int, *, times_a_turn: int = 1
) -> TimedLoop:
    """Return a loop of products `x @ w` of square matrices, each of the last result.

    Args:
        devices: All devices.
        dtype: The dtype of the matrices.
        size: Their rows and columns.
        times_a_turn: Products in one turn.
    """
    mesh = _mesh(devices, len(devices))
    rng = np.random.default_rng(0)
    # A reflection keeps the size of its left operand, so that many products stay finite.
    axis = rng.standard_normal(size)
    w = np.eye(size) - 2 * np.outer(axis, axis) / (axis @ axis)
    x = rng.standard_normal((size, size))

    def body(x: jax.Array, w: jax.Array) -> jax.Array:
        return lax.dot(x, w, preferred_element_type=x.dtype)

    return _loop(mesh, body, [jnp.asarray(x, dtype), jnp.asarray(w, dtype)], times_a_turn)


def memory_passes(devices: Sequence[Device], num_bytes: int) -> Callable[[int], object]:
    """Return what runs a number of passes `x + 1` over float32.

    Each is a call of its own into fresh memory, as the results of a step are: on a CPU their pages
    come from the system, which takes longer than to write them.

    Args:
        devices: All devices.
        num_bytes: Bytes that one device reads and writes together in one pass.
    """
    mesh = _mesh(devices, len(devices))
    mapped = jax.shard_map(lambda x: x + 1, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)
    size = max(num_bytes // (2 * _ITEM_BYTES), 1)
    x = jax.device_put(jnp.zeros(size, jnp.float32), NamedSharding(mesh, P()))
    compiled = jax.jit(mapped).lower(x).compile()

    def run(passes: int) -> object:
        result = x
        for _ in range(passes):
            result = jax.block_until_ready(compiled(x))
        return result

    return run


def collective_loop(
    devices: Sequence[Device],
    kind: str,
    group_size: int,
    num_bytes: int,
    *,
    times_a_turn: int = 1,
) -> TimedLoop:
    """Return a loop of collectives of float32, in groups of neighbouring devices.

    Args:
        devices: All devices.
        kind: The kind, as in `cluster.collectives`.
        group_size: Devices of a group; it divides the number of devices.
        num_bytes: B, the tensor as a group sees it whole; a multiple of 4 times the square of the
            group size.
        times_a_turn: Collectives in one turn, each of the last result.

    Raises:
        ValueError: `kind` is not a collective.
    """
    whole = num_bytes // _ITEM_BYTES
    part = whole // group_size
    ring = [(i, (i + 1) % group_size) for i in range(group_size)]

    def body(x: jax.Array) -> jax.Array:
        match kind:
            case "all-reduce":
                return lax.psum(x, _GROUP)
            case "all-gather":
                # A part of every shard, which no compiler can have without the others.
                return lax.all_gather(x, _GROUP, tiled=True)[::group_size]
            case "reduce-scatter":
                sums = lax.psum_scatter(x, _GROUP, tiled=True)
                return lax.dynamic_update_slice(x, sums, (0,))
            case "all-to-all":
                return lax.all_to_all(x, _GROUP, 0, 0, tiled=True)
            case "permute":
                return lax.ppermute(x, _GROUP, ring)
            case _:
                raise ValueError(f"not a collective: {kind!r}")

    local = whole if kind in (ALL_REDUCE, REDUCE_SCATTER) else part
    assert kind in (ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, ALL_TO_ALL, PERMUTE)
    # Sums of zeros stay finite without a product that would be measured, too.
    zeros = jnp.zeros(local, jnp.float32)
    return _loop(_mesh(devices, group_size), body, [zeros], times_a_turn)


def _mesh(devices: Sequence[Device], group_size: int) -> Mesh:
    return Mesh(np.asarray(devices, object).reshape(-1, group_size), (_GROUPS, _GROUP))


def _loop(
    mesh: Mesh,
    body: Callable[..., jax.Array],
    operands: Sequence[jax.Array],
    times_a_turn: int,
) -> TimedLoop:
    """Return a loop that runs `body` on the first operand; every device has all operands."""

    def turns(count: jax.Array, first: jax.Array, *others: jax.Array) -> jax.Array:
        def turn(number: jax.Array, x: jax.Array) -> jax.Array:
            del number
            for _ in range(times_a_turn):
                x = body(x, *others)
            return x

        return lax.fori_loop(0, count, turn, first)

    whole = NamedSharding(mesh, P())
    specs = (P(),) * (len(operands) + 1)
    mapped = jax.shard_map(turns, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False)
    options = compile_options(mesh.devices.flat[0].platform, mesh.devices.size)
    program = jax.jit(mapped, compiler_options=options)
    placed = [jax.device_put(operand, whole) for operand in operands]
    compiled = program.lower(jnp.int32(1), *placed).compile()
    return TimedLoop(compiled, whole, placed)
