"""Ragged products and experts, device by device: JAX cannot `vmap` the primitive over rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from doubles.few import few
from meshwise.graph.dispatch import dispatch_axes
from meshwise.graph.loops import Strategy, enumerate_strategies, operand_layouts, result_layouts
from meshwise.spmd.shards import SpaceShards
from oracle.every_strategy import (
    MESHES,
    NAMES,
    Run,
    assemble,
    assert_equal,
    coordinates,
    runs_of,
    tiles_of,
)
from oracle.on_devices import check_on_devices
from rule_cases.case import Case
from rule_cases.experts import CASES as EXPERTS
from rule_cases.ragged_dot import CASES


class _AtPlace(SpaceShards):
    """What the device at one place sees, without a mesh."""

    def __init__(
        self, run: Run, strategy: Strategy, sizes: Sequence[int], place: Sequence[int]
    ) -> None:
        super().__init__(run.rule, strategy, sizes, NAMES[: len(sizes)])
        self._place = place

    def _rank(self, loop: int) -> int:
        rank = 0
        for axis, size in enumerate(self._sizes):
            if self._strategy[axis] == loop:
                rank = rank * size + self._place[axis]
        return rank


def _check(run: Run, strategy: Strategy, sizes: Sequence[int]) -> None:
    rng = np.random.default_rng(0)
    operands = operand_layouts(run.rule, strategy, sizes)
    results = result_layouts(run.rule, strategy, sizes)
    assert operands is not None
    assert results is not None
    tiles = [
        tiles_of(v, layout, sizes, rng) for v, layout in zip(run.operands, operands, strict=True)
    ]
    out = {
        place: run.row.local(
            run.equation, _AtPlace(run, strategy, sizes, place), [tile[place] for tile in tiles]
        )
        for place in coordinates(sizes)
    }
    for k, (result, layout) in enumerate(zip(run.results, results, strict=True)):
        tiles_of_result = [out[place][k] for place in coordinates(sizes)]
        stacked = np.stack(tiles_of_result).reshape(*sizes, *tiles_of_result[0].shape)
        got = assemble(stacked, np.shape(result), layout, sizes)
        assert_equal(got, np.asarray(result), 0.0, f"{strategy} on {sizes}, result {k}")


@pytest.mark.parametrize("sizes", few(MESHES, [(2, 4)]), ids=str)
@pytest.mark.parametrize("case", [*CASES, *EXPERTS], ids=str)
def test_every_strategy(case: Case, sizes: tuple[int, ...]) -> None:
    (run,) = runs_of(case.fun, case.operands, case.primitive)
    for strategy in enumerate_strategies(run.rule, sizes):
        if dispatch_axes(run.rule, strategy, sizes):
            check_on_devices(run, [strategy], sizes)
        else:
            _check(run, strategy, sizes)


def test_rows_contracted_dims_and_groups_are_loops() -> None:
    (run,) = runs_of(CASES[0].fun, CASES[0].operands, CASES[0].primitive)
    rows, columns, contracted, groups, dispatch = run.rule.loops
    assert (rows.size, rows.block, columns.size, contracted.kind) == (16, True, 8, "sum")
    assert (groups.size, groups.kind, groups.block) == (4, "sum", True)
    assert run.rule.operands[1][0] == (3,)
    assert (dispatch.size, dispatch.kind, dispatch.block) == (16, "parallel", True)
    # Each group takes a strip, of all rows.
    assert run.row.flop(run.equation) == 2 * (4 * 16) * 4 * 8
