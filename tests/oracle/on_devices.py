"""Strategies of an equation under real `jax.shard_map` on 8 virtual devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from meshwise.graph.loops import Strategy, operand_layouts, result_layouts
from meshwise.spmd.halo import exchange
from oracle.every_strategy import (
    NAMES,
    Run,
    assemble,
    assert_equal,
    compiler_options,
    coordinates,
    local_function,
    raw,
    tiles_of,
)


def check_on_devices(
    run: Run, strategies: Sequence[Strategy], sizes: Sequence[int], *, rtol: float = 0.0
) -> None:
    """Each device gets its tile with leading dims of size 1, one for each mesh axis.

    All strategies are one program.
    """
    rng = np.random.default_rng(0)
    names = NAMES[: len(sizes)]
    devices = np.array(jax.devices()[:8]).reshape(sizes)
    mesh = Mesh(devices, names, axis_types=(AxisType.Auto,) * len(sizes))
    spec = PartitionSpec(*names)
    lead = tuple(range(len(sizes)))
    given: list[list[Any]] = []
    for strategy in strategies:
        layouts = operand_layouts(run.rule, strategy, sizes)
        assert layouts is not None
        tiles = [
            tiles_of(value, layout, sizes, rng)
            for value, layout in zip(run.operands, layouts, strict=True)
        ]
        given.append(jax.device_put(tiles, NamedSharding(mesh, spec)))

    def program(given: list[list[Any]]) -> list[list[Any]]:
        made: list[list[Any]] = []
        for strategy, tiles in zip(strategies, given, strict=True):
            operands = [tile.reshape(tile.shape[len(sizes) :]) for tile in tiles]
            local = local_function(run, strategy, sizes)
            out = local(*exchange(run.rule, strategy, sizes, names, operands))
            made.append([jax.numpy.expand_dims(value, lead) for value in out])
        return made

    mapped = jax.jit(
        jax.shard_map(program, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False),
        compiler_options=compiler_options(run.equation.name),
    )
    for strategy, made in zip(strategies, mapped(given), strict=True):
        results = result_layouts(run.rule, strategy, sizes)
        assert results is not None
        for k, (stacked, layout) in enumerate(zip(made, results, strict=True)):
            values = np.asarray(stacked)
            assert values.shape[: len(sizes)] == tuple(sizes)
            assert len(list(coordinates(sizes))) == len(stacked.addressable_shards)
            got = assemble(values, run.equation.out_avals[k].shape, layout, sizes)
            what = f"{run.equation.name} {strategy} on {sizes}, result {k} in {layout}"
            assert_equal(got, raw(run.results[k]), rtol, what)
