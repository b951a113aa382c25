"""Every strategy of an equation against the unsharded primitive.

Operands are cut in tiles with NumPy, partial operands into random terms; the local form runs
under nested `jax.vmap(axis_name=...)`, one level for each mesh axis; the tiles of the results are
put together again with NumPy.  Edges of neighbours are cut out of the whole operand here; their
exchange is checked on devices (`oracle.on_devices`).  Nothing here is shared with the lowering
except `SpaceShards`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from meshwise.graph.layout import Layout, local_shape
from meshwise.graph.loops import (
    LoopRule,
    Strategy,
    enumerate_strategies,
    operand_layouts,
    result_layouts,
)
from meshwise.graph.sent import Halo
from meshwise.rules.primitive import Equation, PrimitiveRule
from meshwise.rules.table import primitive_rule
from meshwise.spmd.shards import SpaceShards
from meshwise.trace.evaluate import run_node
from meshwise.trace.flatten import flatten
from meshwise.trace.program import Program
from oracle.problem import QUICK_OPTIONS

MESHES = ((8,), (2, 4), (2, 2, 2))
NAMES = ("x", "y", "z")

_Tile = tuple[int, Layout, tuple[Halo, ...]]

# Hundreds of small programs run once each: compile time is all that counts.
_QUICK_COMPILE = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
# The emitters without MLIR are quicker, but write beyond the end in batched scatters.
_QUICKER_COMPILE = {**_QUICK_COMPILE, **QUICK_OPTIONS}


@dataclass(frozen=True)
class Run:
    """One equation with concrete operands and what the primitive gives for them."""

    equation: Equation
    row: PrimitiveRule
    rule: LoopRule
    operands: tuple[Any, ...]
    results: tuple[Any, ...]


def evaluate(program: Program, args: Sequence[Any]) -> dict[int, Any]:
    """All values of a program, equation by equation on one device."""
    values: dict[int, Any] = dict(program.constants)
    values.update(zip(program.inputs, args, strict=True))
    for node in program.nodes:
        results = run_node(node, [values[i] for i in node.inputs])
        values.update(zip(node.outputs, results, strict=True))
    return values


def runs_of(fun: Callable[..., Any], operands: Sequence[Any], primitive: str) -> list[Run]:
    """The equations of a function that are of the primitive under test."""
    program = flatten(jax.make_jaxpr(fun)(*operands))
    wanted = {
        i: None
        for node in program.nodes
        if node.name == primitive
        for i in (*node.inputs, *node.outputs)
    }

    def values_of(args: Sequence[Any]) -> dict[int, Any]:
        found = evaluate(program, args)
        return {i: found[i] for i in wanted}

    # One program instead of one for each equation; another of them may be a scatter.
    lowered = jax.jit(values_of).lower(operands)
    quick = compiler_options("scatter" if "scatter" in lowered.as_text() else primitive)
    values = lowered.compile(compiler_options=quick)(operands)
    runs: list[Run] = []
    for node in program.nodes:
        if node.name == primitive:
            row = primitive_rule(node.equation)
            runs.append(
                Run(
                    node.equation,
                    row,
                    row.rule(node.equation),
                    tuple(values[i] for i in node.inputs),
                    tuple(values[i] for i in node.outputs),
                )
            )
    return runs


def is_key(value: Any) -> bool:
    """Whether a value is an array of random keys."""
    return jax.dtypes.issubdtype(jax.numpy.result_type(value), jax.dtypes.extended)


def raw(value: Any) -> np.ndarray[Any, Any]:
    """A value as NumPy; keys as their words."""
    return np.asarray(jax.random.key_data(value) if is_key(value) else value)


def coordinates(sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Coordinates of all devices."""
    return itertools.product(*(range(size) for size in sizes))


def _extreme(dtype: Any, sign: int) -> Any:
    if np.issubdtype(dtype, np.integer):
        return np.iinfo(dtype).max if sign > 0 else np.iinfo(dtype).min
    return sign * np.inf


# What lies beyond the ends of a dim, by the monoid of its windows.
BEYOND: dict[str, Callable[[Any], Any]] = {
    "sum": lambda dtype: 0,
    "max": lambda dtype: _extreme(dtype, -1),
    "min": lambda dtype: _extreme(dtype, 1),
}


def split_halos(rule: LoopRule, strategy: Strategy, operand: int) -> tuple[Halo, ...]:
    """Halos of one operand whose dims a strategy splits."""
    return tuple(
        halo
        for halo in rule.halos
        if halo.operand == operand and rule.operands[operand][halo.dim][0] in strategy
    )


def tile_index(
    shape: Sequence[int], layout: Layout, sizes: Sequence[int], place: Sequence[int]
) -> tuple[slice, ...]:
    """Where the tile of the device at `place` lies in the whole tensor."""
    index: list[slice] = []
    for size, axes in zip(local_shape(shape, layout, sizes), layout.dims, strict=True):
        rank = 0
        for axis in axes:
            rank = rank * sizes[axis] + place[axis]
        index.append(slice(rank * size, (rank + 1) * size))
    return tuple(index)


def _terms(
    value: np.ndarray[Any, Any], count: int, rng: np.random.Generator
) -> list[np.ndarray[Any, Any]]:
    """Random small-integer terms that sum to `value`."""
    terms = [rng.integers(-3, 4, value.shape).astype(value.dtype) for _ in range(count - 1)]
    last = value
    for term in terms:
        last = (last - term).astype(value.dtype)
    return [*terms, last]


def tiles_of(
    value: Any,
    layout: Layout,
    sizes: Sequence[int],
    rng: np.random.Generator,
    halos: Sequence[Halo] = (),
) -> np.ndarray[Any, Any]:
    """Tiles of all devices, stacked: shape `(*sizes, *local shape)`; with `halos` around them."""
    whole = raw(value)
    shape = np.shape(value)
    partial_sizes = [sizes[a] for a in layout.partial]
    terms = _terms(whole, int(np.prod(partial_sizes)), rng) if layout.partial else [whole]
    for halo in halos:
        widths = [(0, 0)] * len(shape)
        widths[halo.dim] = (halo.low, halo.high)
        beyond = BEYOND[halo.monoid](whole.dtype)
        terms = [np.pad(term, widths, constant_values=beyond) for term in terms]
    tiles = []
    for place in coordinates(sizes):
        term = 0
        for axis in layout.partial:
            term = term * sizes[axis] + place[axis]
        index = list(tile_index(shape, layout, sizes, place))
        for halo in halos:
            cut = index[halo.dim]
            index[halo.dim] = slice(cut.start, cut.stop + halo.low + halo.high)
        tiles.append(terms[term][tuple(index)])
    return np.stack(tiles).reshape(*sizes, *tiles[0].shape)


COMBINE: dict[str, Callable[..., Any]] = {
    "sum": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.logical_and,
    "or": np.logical_or,
}


def plain(value: Any) -> np.ndarray[Any, Any]:
    """A value in a type that NumPy compares, NaN included."""
    array = np.asarray(value)
    # bfloat16 is foreign to NumPy.
    return array.astype(np.float32) if array.dtype.kind == "V" else array


def assemble(
    tiles: np.ndarray[Any, Any], shape: Sequence[int], layout: Layout, sizes: Sequence[int]
) -> np.ndarray[Any, Any]:
    """The whole tensor from the tiles of all devices; replicas must be equal."""
    trailing = tiles.shape[len(sizes) + len(shape) :]
    out = np.zeros((*shape, *trailing), tiles.dtype)
    seen: dict[tuple[int, ...], dict[tuple[int, ...], Any]] = {}
    for place in coordinates(sizes):
        index = tile_index(shape, layout, sizes, place)
        corner = tuple(part.start for part in index)
        term = tuple(place[a] for a in layout.partial)
        assert tiles[place].shape == out[index].shape, f"a tile of the wrong shape for {layout}"
        known = seen.setdefault(corner, {})
        if term in known:
            np.testing.assert_array_equal(
                plain(known[term]), plain(tiles[place]), "replicas differ"
            )
        else:
            known[term] = tiles[place]
            first = len(known) == 1
            combined = tiles[place] if first else COMBINE[layout.monoid](out[index], tiles[place])
            out[index] = combined
    return out


def assert_equal(got: Any, whole: Any, rtol: float, what: str) -> None:
    """Equal types, and equal values up to the tolerance (0: every bit)."""
    assert got.dtype == whole.dtype, what
    if rtol:
        np.testing.assert_allclose(plain(got), plain(whole), rtol, rtol, err_msg=what)
    else:
        np.testing.assert_array_equal(plain(got), plain(whole), what)


def local_function(run: Run, strategy: Strategy, sizes: Sequence[int]) -> Callable[..., list[Any]]:
    """The local form as a function of local tiles (keys as their words), axes bound outside."""
    shards = SpaceShards(run.rule, strategy, sizes, NAMES[: len(sizes)])
    keys = [is_key(value) for value in run.operands]
    impls = [jax.random.key_impl(v) if k else None for v, k in zip(run.operands, keys, strict=True)]

    def local(*tiles: Any) -> list[Any]:
        operands = [
            jax.random.wrap_key_data(tile, impl=impl) if key else tile
            for tile, key, impl in zip(tiles, keys, impls, strict=True)
        ]
        out = run.row.local(run.equation, shards, operands)
        return [jax.random.key_data(value) if is_key(value) else value for value in out]

    return local


def compiler_options(primitive: str) -> dict[str, Any]:
    """What compiles programs of a primitive soonest."""
    return _QUICK_COMPILE if "scatter" in primitive else _QUICKER_COMPILE


def _mapped(function: Callable[..., Any], sizes: Sequence[int]) -> Callable[..., Any]:
    for axis in reversed(range(len(sizes))):
        function = jax.vmap(function, axis_name=NAMES[axis], axis_size=sizes[axis])
    return function


def sampled(strategies: Sequence[Strategy], limit: int) -> list[Strategy]:
    """At most `limit` strategies, evenly spread, always with the first and the last."""
    if len(strategies) <= limit:
        return list(strategies)
    places = np.linspace(0, len(strategies) - 1, limit).round().astype(int)
    return [strategies[i] for i in sorted(set(places.tolist()))]


def without_twins(strategies: Sequence[Strategy], sizes: Sequence[int]) -> list[Strategy]:
    """One, by chance, of all strategies that differ only in which of the equal axes has what."""
    rng = np.random.default_rng(0)
    families: dict[tuple[tuple[int, int], ...], list[Strategy]] = {}
    for strategy in strategies:
        family = tuple(sorted(zip(sizes, strategy, strict=True)))
        families.setdefault(family, []).append(strategy)
    return [twins[rng.integers(len(twins))] for twins in families.values()]


def check_run(
    run: Run, sizes: Sequence[int], *, limit: int, rtol: float = 0.0, twins: bool = False
) -> int:
    """Check up to `limit` strategies of one equation on one mesh; how many were checked.

    Args:
        run: The equation.
        sizes: Of the axes of the mesh.
        limit: Beyond it they are evenly sampled.
        rtol: 0: every bit is equal.
        twins: Also strategies that are others with equal axes swapped.
    """
    rng = np.random.default_rng(0)
    every = list(enumerate_strategies(run.rule, sizes))
    strategies = sampled(every if twins else without_twins(every, sizes), limit)
    wholes = [raw(value) for value in run.results]
    inputs: dict[_Tile, np.ndarray[Any, Any]] = {}
    plans: list[tuple[Strategy, tuple[Layout, ...], tuple[Layout, ...]]] = []
    for strategy in strategies:
        operands = operand_layouts(run.rule, strategy, sizes)
        results = result_layouts(run.rule, strategy, sizes)
        assert operands is not None
        assert results is not None
        plans.append((strategy, operands, results))
        for i, layout in enumerate(operands):
            halos = split_halos(run.rule, strategy, i)
            if (i, layout, halos) not in inputs:
                inputs[i, layout, halos] = tiles_of(run.operands[i], layout, sizes, rng, halos)

    def everything(tiles: dict[_Tile, Any]) -> list[Any]:
        return [
            _mapped(local_function(run, strategy, sizes), sizes)(
                *(
                    tiles[i, layout, split_halos(run.rule, strategy, i)]
                    for i, layout in enumerate(operands)
                )
            )
            for strategy, operands, _ in plans
        ]

    keys = sorted(inputs, key=lambda k: (k[0], str(k[1]), str(k[2])))
    everything_flat = jax.jit(
        lambda arrays: everything(dict(zip(keys, arrays, strict=True))),
        compiler_options=compiler_options(run.equation.name),
    )
    outputs = everything_flat([inputs[k] for k in keys])
    for (strategy, _, results), out in zip(plans, outputs, strict=True):
        for k, (layout, tiles) in enumerate(zip(results, out, strict=True)):
            shape = run.equation.out_avals[k].shape
            got = assemble(np.asarray(tiles), shape, layout, sizes)
            what = f"{run.equation.name} {strategy} on {sizes}, result {k} in {layout}"
            assert_equal(got, wholes[k], rtol, what)
    return len(plans)
