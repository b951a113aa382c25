"""Products of rows in groups, strip by strip: a strip has rows of one group, and no more than fit.

JAX gives `ragged_dot_general` to XLA as a dense product, once for each group, but on TPUs; with
groups of rows in each of several sequences XLA compiles it for no GPU and no TPU at all (JAX
0.10.2).  Here one loop goes over groups, and one in it over the strips of a group: each row is
multiplied once, besides what fills the last strip of a group, and groups of other devices are left
out.

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

# Rows of a strip: half of a group of middle size, so that what fills the last one is a quarter of
# the work at most; but not so few that a matrix takes longer to read than to multiply with.
_FEWEST, _MOST, _STRIPS_OF_GROUP = 128, 1024, 2

# The carry of a loop over strips: arrays of one group, or of all.
_Carry = Any


def strip_rows(num_rows: int, num_groups: int) -> int:
    """Return how many rows a strip has at most: a power of two, or all rows.

    Args:
        num_rows: Rows of all groups.
        num_groups: Groups; those of each sequence count by themselves.
    """
    wanted = num_rows // (max(1, num_groups) * _STRIPS_OF_GROUP)
    power = 1 << max(0, wanted.bit_length() - 1)
    return max(1, min(num_rows, max(_FEWEST, min(_MOST, power))))


class Groups(NamedTuple):
    """Where the rows of each matrix are.

    Attributes:
        first: Number of the first row: (matrix, sequence).
        length: Number of rows: (matrix, sequence).
    """

    first: Array
    length: Array


class _Strips(NamedTuple):
    """The strips of groups.

    Attributes:
        groups: The groups.
        size: Rows of a strip at most.
    """

    groups: Groups
    size: int

    def run(
        self, matrix: Array, body: Callable[[Array, Array, _Carry], _Carry], carry: _Carry
    ) -> _Carry:
        """Run a body for each strip of a matrix.

        Args:
            matrix: Number of the matrix.
            body: Takes the numbers of the first row and of the row behind the last one, and what
                goes from strip to strip.
            carry: What the first strip gets.
        """
        first, length = self.groups.first[matrix], self.groups.length[matrix]
        counts = -(-length // self.size)
        ends = jnp.cumsum(counts)

        def turn(number: Array, carry: _Carry) -> _Carry:
            sequence = jnp.sum(number >= ends)
            before = (number - (ends - counts)[sequence]) * self.size
            start = first[sequence] + before
            stop = start + jnp.minimum(length[sequence] - before, self.size)
            return body(start, stop, carry)

        return lax.fori_loop(jnp.zeros_like(ends[-1]), ends[-1], turn, carry)

    def rows(self, x: Array, start: Array) -> tuple[Array, Array]:
        """Return as many rows as a strip has, from its first on if there are, and their first."""
        at = jnp.minimum(start, x.shape[0] - self.size)
        return lax.dynamic_slice_in_dim(x, at, self.size), at

    def has(self, at: Array, start: Array, stop: Array) -> Array:
        """Return which of the rows from `at` on a strip has: (row, 1)."""
        number = at + lax.broadcasted_iota(at.dtype, (self.size, 1), 0)
        return (start <= number) & (number < stop)


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
        strip: Rows of a strip at most.
        dtype: Of the result.
        precision: As in `lax.dot_general`.

    Returns:
        (row, column).
    """
    strips = _Strips(groups, strip)

    def of_matrix(number: Array, out: Array) -> Array:
        matrix = lax.dynamic_index_in_dim(matrices, number, keepdims=False)

        def of_strip(start: Array, stop: Array, out: Array) -> Array:
            some, at = strips.rows(rows, start)
            made = lax.dot_general(
                some, matrix, (((1,), (int(is_turned),)), ((), ())),
                precision=precision, preferred_element_type=dtype,
            )  # fmt: skip
            others = lax.dynamic_slice_in_dim(out, at, strip)
            made = jnp.where(strips.has(at, start, stop), made, others)
            return lax.dynamic_update_slice_in_dim(out, made, at, 0)

        return strips.run(number, of_strip, out)

    out = jnp.zeros((rows.shape[0], matrices.shape[1 if is_turned else 2]), dtype)
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
        strip: Rows of a strip at most.
        dtype: Of the result; sums of strips have 32 bits or more.
        precision: As in `lax.dot_general`.

    Returns:
        (matrix, one, other).
    """
    is_short = jnp.issubdtype(dtype, jnp.inexact) and dtype.itemsize < 4
    of_sums = np.dtype(np.float32) if is_short else dtype
    shape = (left.shape[-1], right.shape[-1])
    strips = _Strips(groups, strip)

    def of_matrix(number: Array, out: Array) -> Array:
        def of_strip(start: Array, stop: Array, sums: Array) -> Array:
            (one, at), (other, _) = strips.rows(left, start), strips.rows(right, start)
            has = strips.has(at, start, stop)
            return sums + lax.dot_general(
                jnp.where(has, one, jnp.zeros_like(one)),
                jnp.where(has, other, jnp.zeros_like(other)),
                (((0,), (0,)), ((), ())),
                precision=precision,
                preferred_element_type=of_sums,
            )

        sums = strips.run(number, of_strip, jnp.zeros(shape, of_sums))
        return lax.dynamic_update_index_in_dim(out, sums.astype(dtype), number, 0)

    num_matrices = len(groups.first)
    return lax.fori_loop(0, num_matrices, of_matrix, jnp.zeros((num_matrices, *shape), dtype))
