"""Products of rows in groups, strip by strip: a strip has rows of one group.

JAX gives `ragged_dot_general` to XLA:GPU and XLA:CPU as a dense product of all rows with each
matrix.  With groups in each of several sequences neither XLA:GPU nor XLA:TPU compiles it (JAX
0.10.2).  Here one loop goes over groups, and one in it over the strips of a group.  So each row is
multiplied once, and groups of other devices are left out.  The last strip of a group is filled with
zeros.

Source: Gale et al. 2023 (MegaBlocks), section 4, for blocks of rows of one expert.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

# Rows of a strip: half of a group of middle size, so that the half of the last one that is empty is
# a quarter of the work; but not so few that a matrix takes longer to read than to multiply with.
FEWEST_ROWS, MOST_ROWS, STRIPS_OF_GROUP = 128, 1024, 2

# The carry of a loop over strips: arrays of one group, or of all.
_Carry = Any


def strip_rows(num_rows: int, num_groups: int) -> int:
    """Return how many rows a strip has: a power of two, or all rows.

    Args:
        num_rows: Rows of all groups.
        num_groups: Groups, each of all sequences.
    """
    wanted = num_rows // (max(1, num_groups) * STRIPS_OF_GROUP)
    power = 1 << max(0, wanted.bit_length() - 1)
    return max(1, min(num_rows, max(FEWEST_ROWS, min(MOST_ROWS, power))))


def computed_rows(num_rows: int, num_groups: int) -> float:
    """Return how many rows are computed, with those that fill strips, if groups are equally large.

    Args:
        num_rows: Rows of all groups.
        num_groups: Groups, each of all sequences.
    """
    fewest = min(FEWEST_ROWS, num_rows)
    filled = max(num_rows / (2 * STRIPS_OF_GROUP), num_groups * fewest / 2)
    return max(num_rows + filled, float(min(num_groups, num_rows) * fewest))


class Groups(NamedTuple):
    """Where the rows of each matrix are: one run of them in each sequence.

    Attributes:
        first: Number of the first row: (matrix, sequence).
        length: Number of rows: (matrix, sequence).
    """

    first: Array
    length: Array

    def rows(self, matrix: Array, strip: Array, size: int, beyond: int) -> Array:
        """Return the numbers of the rows of a strip.

        Args:
            matrix: Number of the matrix.
            strip: Number of the strip among those of the matrix.
            size: Rows of a strip.
            beyond: The number of all rows; numbers from it on stand behind the last row of the
                matrix, each once.
        """
        first, length = self.first[matrix], self.length[matrix]
        ends = jnp.cumsum(length)
        place = strip * size + jnp.arange(size, dtype=ends.dtype)
        sequence = jnp.sum(place[:, None] >= ends, axis=1)
        shift = jnp.take(first - (ends - length), sequence, mode="clip")
        return jnp.where(place < ends[-1], place + shift, beyond + place)

    def run(
        self, matrix: Array, size: int, body: Callable[[Array, _Carry], _Carry], carry: _Carry
    ) -> _Carry:
        """Run a body for each strip of a matrix.

        Args:
            matrix: Number of the matrix.
            size: Rows of a strip.
            body: Takes the number of the strip, and what goes from strip to strip.
            carry: What the first strip gets.
        """
        count = -(-jnp.sum(self.length[matrix]) // size)
        return lax.fori_loop(jnp.zeros_like(count), count, body, carry)


@partial(jax.jit, static_argnames=("is_turned", "strip", "dtype", "precision"))
def rows_by_matrices(
    rows: Array,
    matrices: Array,
    groups: Groups,
    *,
    is_turned: bool,
    strip: int,
    dtype: np.dtype,
    precision: Any,
) -> Array:
    """Return each row times the matrix of its group; 0 for rows of no group.

    Args:
        rows: (row, contracted).
        matrices: (matrix, contracted, column), or (matrix, column, contracted).
        groups: The rows of each matrix.
        is_turned: Whether the contracted dim of the matrices is the last one.
        strip: Rows of a strip.
        dtype: Of the result.
        precision: As in `lax.dot_general`.

    Returns:
        (row, column).
    """

    def of_matrix(number: Array, out: Array) -> Array:
        matrix = lax.dynamic_index_in_dim(matrices, number, keepdims=False)

        def of_strip(turn: Array, out: Array) -> Array:
            which = groups.rows(number, turn, strip, len(rows))
            made = lax.dot_general(
                _taken(rows, which), matrix, (((1,), (int(is_turned),)), ((), ())),
                precision=precision, preferred_element_type=dtype,
            )  # fmt: skip
            return out.at[which].set(made, mode="drop", unique_indices=True)

        return groups.run(number, strip, of_strip, out)

    out = jnp.zeros((len(rows), matrices.shape[1 if is_turned else 2]), dtype)
    return lax.fori_loop(0, len(matrices), of_matrix, out)


@partial(jax.jit, static_argnames=("strip", "dtype", "precision"))
def rows_by_rows(
    left: Array, right: Array, groups: Groups, *, strip: int, dtype: np.dtype, precision: Any
) -> Array:
    """Return for each group the product of its rows with its rows: gradients of matrices.

    Args:
        left: (row, one).
        right: (row, other).
        groups: The rows of each matrix.
        strip: Rows of a strip.
        dtype: Of the result; sums of floats have 32 bits or more.
        precision: As in `lax.dot_general`.

    Returns:
        (matrix, one, other).
    """
    is_short = jnp.issubdtype(dtype, jnp.inexact) and dtype.itemsize < 4
    of_sums = np.dtype(np.float32) if is_short else dtype
    shape = (left.shape[-1], right.shape[-1])

    def of_matrix(number: Array, out: Array) -> Array:
        def of_strip(turn: Array, sums: Array) -> Array:
            which = groups.rows(number, turn, strip, len(left))
            return sums + lax.dot_general(
                _taken(left, which), _taken(right, which), (((0,), (0,)), ((), ())),
                precision=precision, preferred_element_type=of_sums,
            )  # fmt: skip

        sums = groups.run(number, strip, of_strip, jnp.zeros(shape, of_sums))
        return lax.dynamic_update_index_in_dim(out, sums.astype(dtype), number, 0)

    num_matrices = len(groups.first)
    return lax.fori_loop(0, num_matrices, of_matrix, jnp.zeros((num_matrices, *shape), dtype))


def _taken(x: Array, which: Array) -> Array:
    """Return rows by their numbers; 0 for a number beyond them."""
    return x.at[which].get(mode="fill", fill_value=0)
