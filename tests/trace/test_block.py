"""Blocks cut at dynamic places, also twice with a product between."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from meshwise.trace.block import take_block

WORDS = np.arange(1, 9)
DTYPES = ["int8", "uint8", "int16", "int32", "uint32", "int64", "uint64", "float32", "bool"]


def _plain(value, start, size, dim):
    return lax.dynamic_slice_in_dim(value, start, size, dim)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("outer", "inner"),
    [(take_block, take_block), (take_block, _plain), (_plain, take_block)],
    ids=["both", "outer", "inner"],
)
def test_a_product_between_two_cuts_is_kept(dtype, outer, inner):
    with jax.enable_x64(True):
        words = jnp.asarray(WORDS % 2 if dtype == "bool" else WORDS, dtype)
        three = jnp.asarray(3, dtype)

        @jax.jit
        def cut(words, i, j):
            rows = inner(words, 2 * i, 2, 0) * three
            return outer(rows.reshape(2, 1), j, 1, 0)

        for i in range(4):
            for j in range(2):
                np.testing.assert_array_equal(cut(words, i, j)[0, 0], words[2 * i + j] * three)


def test_a_block_of_a_later_dim():
    grid = jnp.arange(24).reshape(2, 12)
    block = jax.jit(lambda start: take_block(grid, start, 3, 1))(6)
    np.testing.assert_array_equal(block, grid[:, 6:9])
    assert block.dtype == grid.dtype
