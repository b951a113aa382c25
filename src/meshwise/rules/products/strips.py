"""Products of rows in groups, strip by strip: a strip has rows of one group.

JAX gives `ragged_dot_general` to XLA:GPU and XLA:CPU as a dense product of all rows with each
matrix.  With groups in each of several sequences neither XLA:GPU nor XLA:TPU compiles it (JAX
0.10.2).  Here one loop goes over groups, and one in it over the strips of a group.  So each row is
multiplied once, and groups of other devices are left out.  The last strip of a group is filled with
zeros; in gradients of a function, with rows again whose cotangents are zeros.

Source: Gale et al. 2023 (MegaBlocks), section 4, for blocks of rows of one expert.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from meshwise.graph.turns import turns_scope
from meshwise.rules.products.row_function import RowFunction

# Rows of a strip: about half of a group of mean size (a power of two), so that the last strip, half
# empty on average, adds at most about a quarter to the work; but not so few rows that a matrix
# takes longer to read than to multiply.  Sums of gradients move four times the bytes: 32 instead of
# 16 bits, read and written.
FEWEST_ROWS, STRIPS_OF_GROUP = 128, 2
_MOST_ROWS, _MOST_ROWS_OF_SUMS = 1024, 4096

# The carry of a loop over strips: arrays of one group, or of all.
_Carry = Any


def most_rows(*, makes_matrices: bool) -> int:
    """Return how many rows a strip has at most.

    Args:
        makes_matrices: Whether rows are contracted.
    """
    return _MOST_ROWS_OF_SUMS if makes_matrices else _MOST_ROWS


def strip_rows(num_rows: int, num_groups: int, most: int) -> int:
    """Return how many rows a strip has: a power of two, or all rows.

    Args:
        num_rows: Rows of all groups.
        num_groups: Groups, each of all sequences.
        most: What `most_rows` returns.
    """
    wanted = num_rows // (max(1, num_groups) * STRIPS_OF_GROUP)
    power = 1 << max(0, wanted.bit_length() - 1)
    return max(1, min(num_rows, max(FEWEST_ROWS, min(most, power))))


def computed_rows(num_rows: int, num_groups: int) -> float:
    """Return how many rows are computed, with those that fill the last strips.

    The last strip of each group is taken as half empty, and strips as not limited by `most`.

    Args:
        num_rows: Rows of all groups.
        num_groups: Groups, each of all sequences.
    """
    fewest = min(FEWEST_ROWS, num_rows)
    filled = max(num_rows / (2 * STRIPS_OF_GROUP), num_groups * fewest / 2)
    return max(num_rows + filled, float(min(num_groups, num_rows) * fewest))


class Strips(NamedTuple):
    """The strips of a group.

    Attributes:
        size: Rows of a strip.
        turns: Strips of a group of mean size.
    """

    size: int
    turns: int

    @staticmethod
    def of(num_rows: int, num_groups: int, most: int) -> Strips:
        """Return strips for some rows.

        Args:
            num_rows: Rows of all groups.
            num_groups: Groups, each of all sequences.
            most: What `most_rows` returns.
        """
        size = strip_rows(num_rows, num_groups, most)
        return Strips(size, max(1, -(-num_rows // (max(1, num_groups) * size))))


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
            beyond: Number of all rows; places without a row get distinct numbers >= `beyond`.
        """
        first, length = self.first[matrix], self.length[matrix]
        ends = jnp.cumsum(length)
        place = strip * size + jnp.arange(size, dtype=ends.dtype)
        sequence = jnp.sum(place[:, None] >= ends, axis=1)
        shift = jnp.take(first - (ends - length), sequence, mode="clip")
        return jnp.where(place < ends[-1], place + shift, beyond + place)

    def run(
        self, matrix: Array, strips: Strips, body: Callable[[Array, _Carry], _Carry], carry: _Carry
    ) -> _Carry:
        """Run a body for each strip of a matrix.

        Args:
            matrix: Number of the matrix.
            strips: Its strips.
            body: Takes the number of the strip, and what goes from strip to strip.
            carry: What the first strip gets.
        """
        count = -(-jnp.sum(self.length[matrix]) // strips.size)
        return run_turns(count, strips.turns, body, carry)

    def run_all(
        self, some: int | None, body: Callable[[Array, _Carry], _Carry], carry: _Carry
    ) -> _Carry:
        """Run a body for each matrix.

        Args:
            some: How many have rows, about, if only some have: from the first to the last of them.
            body: Takes the number of the matrix, and what goes from matrix to matrix.
            carry: What the first matrix gets.
        """
        if some is None:
            return lax.fori_loop(0, len(self.length), body, carry)
        has_rows = jnp.any(self.length > 0, axis=1)
        first, last = jnp.argmax(has_rows), len(has_rows) - jnp.argmax(has_rows[::-1])
        count = jnp.where(jnp.any(has_rows), last - first, 0)
        return run_turns(count, some, lambda turn, carry: body(first + turn, carry), carry)


def run_turns(
    count: Array, about: int, body: Callable[[Array, _Carry], _Carry], carry: _Carry
) -> _Carry:
    """Run a body; how often is known only when the step runs.

    Args:
        count: How often.
        about: How often it is expected to run.
        body: Takes the number of the turn, and what goes from turn to turn.
        carry: What the first turn gets.

    Returns:
        What the last turn gives.
    """
    with jax.named_scope(turns_scope(about)):
        return lax.fori_loop(jnp.zeros_like(count), count, body, carry)


@partial(jax.jit, static_argnames=("function", "strips", "some"))
def rows_by_matrices(
    rows: Array,
    matrices: Sequence[Array],
    groups: Groups,
    *,
    function: RowFunction,
    strips: Strips,
    some: int | None = None,
) -> Array:
    """Return what a function makes of each row with the matrices of its group.

    Args:
        rows: (row, feature).
        matrices: For each matrix of the function those of all groups: (group, one, other).
        groups: The rows of each group.
        function: The function.
        strips: The strips of each group.
        some: How many groups have rows, about, if only some have; they stand together.

    Returns:
        (row, column); 0 for rows of no group.
    """

    def of_matrix(number: Array, out: Array) -> Array:
        own = _of_group(matrices, number)

        def of_strip(turn: Array, out: Array) -> Array:
            which = groups.rows(number, turn, strips.size, len(rows))
            made = function.of(taken(rows, which), own)
            return out.at[which].set(made, mode="drop", unique_indices=True)

        return groups.run(number, strips, of_strip, out)

    row = jax.ShapeDtypeStruct((1, rows.shape[-1]), rows.dtype)
    shapes = [jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in matrices]
    made = jax.eval_shape(function.of, row, shapes)
    out = jnp.zeros((len(rows), made.shape[-1]), made.dtype)
    return groups.run_all(some, of_matrix, out)


@partial(jax.jit, static_argnames=("function", "strips", "some"))
def gradients_of_rows(
    rows: Array,
    cotangents: Array,
    matrices: Sequence[Array],
    groups: Groups,
    sums: Sequence[Array],
    *,
    function: RowFunction,
    strips: Strips,
    some: int | None = None,
) -> tuple[Array, list[Array]]:
    """Return gradients for rows, and add those for matrices to sums.

    Args:
        rows: (row, feature).
        cotangents: The cotangents of the results of the function: (row, column).
        matrices: As `rows_by_matrices` has them.
        groups: The rows of each group.
        sums: What is added to, for each matrix: (group, one, other); floats are added with 32 bits
            or more.
        function: The function.
        strips: The strips of each group.
        some: How many groups have rows, about, if only some have; they stand together.

    Returns:
        (row, feature), 0 for rows of no group; the new sums.
    """
    dtypes = [sum_dtype(x.dtype) for x in sums]

    def of_matrix(number: Array, carry: _Carry) -> _Carry:
        own = _of_group(matrices, number)

        def of_strip(turn: Array, carry: _Carry) -> _Carry:
            out, sums = carry
            which = groups.rows(number, turn, strips.size, len(rows))
            # A row of zeros may give inf, and 0 * inf is NaN: empty places repeat the first row.
            some_row = jnp.where(which < len(rows), which, which[0])
            found, terms = function.gradients(
                taken(rows, some_row), own, taken(cotangents, which), dtypes
            )
            out = out.at[which].set(found, mode="drop", unique_indices=True)
            return out, [x + term for x, term in zip(sums, terms, strict=True)]

        out, sums = carry
        before = [x.astype(dtype) for x, dtype in zip(_of_group(sums, number), dtypes, strict=True)]
        out, added = groups.run(number, strips, of_strip, (out, before))
        return out, [
            lax.dynamic_update_index_in_dim(x, term.astype(x.dtype), number, 0)
            for x, term in zip(sums, added, strict=True)
        ]

    return groups.run_all(some, of_matrix, (jnp.zeros_like(rows), list(sums)))


def _of_group(arrays: Sequence[Array], number: Array) -> list[Array]:
    return [lax.dynamic_index_in_dim(x, number, keepdims=False) for x in arrays]


@partial(jax.jit, static_argnames=("strips", "precision", "some"))
def rows_by_rows(
    left: Array,
    right: Array,
    groups: Groups,
    out: Array,
    *,
    strips: Strips,
    precision: Any,
    some: int | None = None,
) -> Array:
    """Add for each group the product of its left rows with its right rows: gradients of matrices.

    Args:
        left: (row, one).
        right: (row, other).
        groups: The rows of each matrix.
        out: What is added to: (matrix, one, other); floats are added with 32 bits or more.
        strips: The strips of each group.
        precision: As in `lax.dot_general`.
        some: How many groups have rows, about, if only some have; they stand together.

    Returns:
        (matrix, one, other).
    """
    of_sums = sum_dtype(out.dtype)

    def of_matrix(number: Array, out: Array) -> Array:
        def of_strip(turn: Array, sums: Array) -> Array:
            which = groups.rows(number, turn, strips.size, len(left))
            return sums + lax.dot_general(
                taken(left, which), taken(right, which), (((0,), (0,)), ((), ())),
                precision=precision, preferred_element_type=of_sums,
            )  # fmt: skip

        sums = lax.dynamic_index_in_dim(out, number, keepdims=False).astype(of_sums)
        sums = groups.run(number, strips, of_strip, sums)
        return lax.dynamic_update_index_in_dim(out, sums.astype(out.dtype), number, 0)

    return groups.run_all(some, of_matrix, out)


def sum_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype in which numbers are added: floats have 32 bits or more.

    Args:
        dtype: The dtype of the numbers.
    """
    is_short = jnp.issubdtype(dtype, jnp.inexact) and dtype.itemsize < 4
    return np.dtype(np.float32) if is_short else dtype


def taken(x: Array, which: Array) -> Array:
    """Return rows by their numbers.

    Args:
        x: (row, feature).
        which: Numbers of rows; a number beyond them gets zeros.
    """
    return x.at[which].get(mode="fill", fill_value=0)
