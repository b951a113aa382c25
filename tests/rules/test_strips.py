"""Strips of rows in groups: every row once, whatever the groups and the strips."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from meshwise.rules.products.row_function import RowFunction, RowProduct
from meshwise.rules.products.strips import (
    Groups,
    Strips,
    computed_rows,
    rows_by_matrices,
    rows_by_rows,
    strip_rows,
)

# (sequence, matrix): groups that are empty, full, of one row, and that end before their rows do.
LENGTHS = np.array([[5, 0, 9, 1], [0, 17, 0, 0], [3, 4, 0, 2]])
ROWS, WIDTH, COLUMNS = 17, 3, 5


def _groups() -> Groups:
    starts = ROWS * np.arange(3)[:, None] + LENGTHS.cumsum(axis=1) - LENGTHS
    return Groups(jnp.asarray(starts.T), jnp.asarray(LENGTHS.T))


def _of_row() -> np.ndarray:
    """Return the matrix of each row, -1 for none."""
    found = np.full((3, ROWS), -1)
    for sequence, lengths in enumerate(LENGTHS):
        found[sequence, : lengths.sum()] = np.repeat(np.arange(4), lengths)
    return found.ravel()


def _values(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(-4, 5, shape).astype(np.float32)


def _options(strip: int) -> Any:
    return {"strips": Strips(strip, 1), "precision": None}


@pytest.mark.parametrize("strip", [1, 2, 4, 8, 3 * ROWS])
@pytest.mark.parametrize("is_turned", [False, True], ids=["", "turned"])
def test_rows_by_matrices(is_turned: bool, strip: int) -> None:
    rows, matrices = _values(3 * ROWS, WIDTH), _values(4, WIDTH, COLUMNS)
    given = matrices.transpose(0, 2, 1) if is_turned else matrices
    function = RowFunction((RowProduct(0, 0, is_turned, "float32", None),))
    got = rows_by_matrices(rows, [given], _groups(), function=function, strips=Strips(strip, 1))
    of_row = _of_row()
    want = np.einsum("rw,rwc->rc", rows, matrices[of_row]) * (of_row >= 0)[:, None]
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("strip", [1, 2, 4, 8, 3 * ROWS])
def test_rows_by_rows(strip: int) -> None:
    left, right = _values(3 * ROWS, WIDTH), _values(3 * ROWS, COLUMNS)
    of_row = _of_row()
    # What lies in rows of no group goes into no sum.
    left[of_row < 0], right[of_row < 0] = np.nan, np.inf
    before = _values(4, WIDTH, COLUMNS)
    got = rows_by_rows(left, right, _groups(), before, **_options(strip))
    want = [left[of_row == m].T @ right[of_row == m] for m in range(4)]
    np.testing.assert_array_equal(got, before + np.stack(want))


def test_sums_of_short_floats_are_long() -> None:
    left = jnp.ones((512, 1), jnp.bfloat16)
    groups = Groups(jnp.array([[0]]), jnp.array([[512]]))
    nothing = jnp.zeros((1, 1, 1), jnp.bfloat16)
    assert rows_by_rows(left, left, groups, nothing, **_options(1))[0, 0, 0] == 512


def test_a_strip_is_half_of_a_group_between_bounds() -> None:
    assert [strip_rows(8192, groups, 1024) for groups in (1, 8, 16, 64, 8192)] == [
        1024, 512, 256, 128, 128,
    ]  # fmt: skip
    assert [strip_rows(rows, 4, 1024) for rows in (0, 1, 100)] == [1, 1, 100]


def test_what_fills_strips_is_counted() -> None:
    # Two strips and a half of half a group each; one and a half of a whole group; one for few rows.
    assert computed_rows(8 * 512, 8) == 8 * 2.5 * 256
    assert computed_rows(64 * 128, 64) == 64 * 1.5 * 128
    assert computed_rows(256 * 16, 256) == 256 * 128
    assert computed_rows(16, 4) == 4 * 16
