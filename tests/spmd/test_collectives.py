"""Paths of collectives on real (virtual) devices: each device ends with what the layout says."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from doubles.tiles import all_layouts, assert_is, coordinates, spread, tile
from meshwise.errors import PlanError
from meshwise.graph.layout import Layout
from meshwise.resharding.within import path
from meshwise.spmd.collectives import apply_step
from meshwise.spmd.program import concrete_mesh
from oracle.parallel import CLUSTER

SHAPE = (8, 16)
NUM_PAIRS = 40


def _reshard(value: Any, before: Layout, after: Layout, mesh: Any, itemsize: int) -> Any:
    layout = before
    for step in path(SHAPE, itemsize, before, after, mesh):
        value = apply_step(value, layout, step, mesh.sizes, mesh.names)
        layout = step.layout
    assert layout == after
    return value


@pytest.mark.usefixtures("quick_compile")
@pytest.mark.parametrize("sizes", [(8,), (2, 4), (2, 2, 2)])
@pytest.mark.parametrize(("dtype", "monoid"), [("int32", "sum"), ("int32", "max"), ("bool", "or")])
def test_paths_end_in_the_layout_that_was_asked_for(sizes, dtype, monoid):
    mesh, rng = CLUSTER.mesh(sizes), np.random.default_rng(0)
    whole = rng.integers(-50, 50, SHAPE)
    whole = whole > 0 if dtype == "bool" else whole
    layouts = list(all_layouts(SHAPE, sizes))
    if monoid != "sum":
        layouts = [lay._replace(monoid=monoid) if lay.partial else lay for lay in layouts]
    pairs = []
    for before, after in random.Random(0).sample(
        [(a, b) for a in layouts for b in layouts if a != b], min(200, len(layouts) ** 2 // 2)
    ):
        try:
            path(SHAPE, 4, before, after, mesh)
        except PlanError:
            continue
        pairs.append((before, after))
    pairs = pairs[:NUM_PAIRS]
    assert len(pairs) >= 6
    given = [_values(whole, before, sizes, rng) for before, _ in pairs]
    stacked = [np.stack([v[at] for at in coordinates(sizes)]) for v in given]

    def local(tiles: list[Any]) -> list[Any]:
        return [
            _reshard(part[0], before, after, mesh, 4)[None]
            for part, (before, after) in zip(tiles, pairs, strict=True)
        ]

    spec = PartitionSpec(mesh.names)
    run = partial(jax.shard_map, in_specs=spec, out_specs=spec, check_vma=False)
    results = jax.jit(run(local, mesh=concrete_mesh(mesh, jax.devices())))(stacked)
    for (before, after), result in zip(pairs, results, strict=True):
        values = dict(zip(coordinates(sizes), np.asarray(result), strict=True))
        try:
            assert_is(values, whole, after, sizes)
        except AssertionError as error:
            raise AssertionError(f"{before} -> {after}") from error


def _values(whole: Any, layout: Layout, sizes: Any, rng: Any) -> dict[Any, Any]:
    """Values of all devices; terms of a maximum lie below it on all ranks but one."""
    if layout.monoid in ("", "sum"):
        return spread(whole, layout, sizes, rng)
    terms: dict[Any, Any] = {}
    values = {}
    for at in coordinates(sizes):
        rank = tuple(at[a] for a in layout.partial)
        if rank not in terms:
            below = whole & False if whole.dtype == bool else whole - rng.integers(0, 9, SHAPE)
            terms[rank] = below if terms else whole
        values[at] = tile(terms[rank], Layout(layout.dims), sizes, at)
    return values
