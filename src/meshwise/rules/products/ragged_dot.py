"""`ragged_dot_general`: rows in groups, each group with a matrix of its own.

The ragged dim may be cut into blocks: the sizes of the groups inside a block follow from those of
all.  The groups may be split too (expert parallelism without capacities): each device has the rows
of all groups and multiplies those of its own, so that the products are partial sums.  Its local
form takes rows of one group at a time (`strips`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from meshwise.graph.graph import Scratch
from meshwise.graph.layout import SUM
from meshwise.graph.loops import LoopRule
from meshwise.rules.loop_list import LoopList
from meshwise.rules.primitive import Equation, PrimitiveRule, Shards, rebind
from meshwise.rules.products.strips import (
    MOST_ROWS,
    STRIPS_OF_GROUP,
    Groups,
    computed_rows,
    rows_by_matrices,
    rows_by_rows,
    strip_rows,
)

# Some dims of an operand.
_Run = tuple[int, ...]
# Bytes of a number in sums, at least.
_SUM_BYTES = 4


def ragged_dot_rule(eqn: Equation) -> LoopRule:
    """Return loops in the order: batch, free dims of the left, of the right, contracted, groups."""
    numbers = eqn.params["ragged_dot_dimension_numbers"]
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = numbers.dot_dimension_numbers
    (ragged,) = numbers.lhs_ragged_dimensions
    lhs, rhs, sizes = (aval.shape for aval in eqn.in_avals)
    loops = LoopList()
    left: list[tuple[int, ...]] = [()] * len(lhs)
    right: list[tuple[int, ...]] = [()] * len(rhs)
    result: list[tuple[int, ...]] = []
    for i, j in zip(lhs_batch, rhs_batch, strict=True):
        # In groups of the batch the rows of one group are those of others: whole.
        left[i] = right[j] = () if i == ragged else loops.add(lhs[i])
        result.append(left[i])
    lhs_free = [i for i in range(len(lhs)) if i not in (*lhs_batch, *lhs_contract)]
    taken = (*rhs_batch, *rhs_contract, *numbers.rhs_group_dimensions)
    for i in lhs_free:
        left[i] = loops.add(lhs[i], block=i == ragged)
        result.append(left[i])
    for j in range(len(rhs)):
        if j not in taken:
            right[j] = loops.add(rhs[j])
            result.append(right[j])
    for i, j in zip(lhs_contract, rhs_contract, strict=True):
        left[i] = right[j] = loops.add(lhs[i], SUM, block=i == ragged)
    whole = ""
    if ragged in lhs_batch:
        whole = "the groups"
    elif ragged in lhs_contract:
        result.insert(0, loops.add(sizes[-1], block=True))
    else:
        (group,) = numbers.rhs_group_dimensions
        right[group] = loops.add(sizes[-1], SUM, block=True)
    kind = next(dims for dims in (lhs_batch, lhs_contract, lhs_free) if ragged in dims)
    outer = kind[: list(kind).index(ragged)]
    with_sizes = () if len(sizes) == 1 else outer if ragged in lhs_batch else (*lhs_batch, *outer)
    return LoopRule(
        loops.done(),
        (tuple(left), tuple(right), (*(left[i] for i in with_sizes), ())),
        (tuple(result),),
        linear=((0,), (1,)),
        whole=whole,
    )


@dataclass(frozen=True, slots=True)
class _Dims:
    """Runs of dims of both operands; dims that both have are in the same order.

    Attributes:
        batch: Dims of the batch, of the left operand and of the right one.
        rows: Outer dims of the left operand, the ragged one, and those beside it; of the right
            operand too, where rows are contracted.
        contracted: Contracted dims that are not in `rows`.
        free: Dims of one operand alone that are not in `rows`.
        groups: The dim of the groups, of the right operand, if it has them.
        num_outer: Number of dims in `rows` before the ragged one.
    """

    batch: tuple[_Run, _Run]
    rows: tuple[_Run, _Run]
    contracted: tuple[_Run, _Run]
    free: tuple[_Run, _Run]
    groups: _Run
    num_outer: int

    @staticmethod
    def of(numbers: lax.RaggedDotDimensionNumbers, left: int, right: int) -> _Dims:
        """Return the dims of operands with so many dims; the ragged one is not in the batch."""
        contracted, batch = (
            (tuple(of_left), tuple(of_right)) for of_left, of_right in numbers.dot_dimension_numbers
        )
        (ragged,) = numbers.lhs_ragged_dimensions
        groups = tuple(numbers.rhs_group_dimensions)
        free = (
            _others(left, (*batch[0], *contracted[0])),
            _others(right, (*batch[1], *contracted[1], *groups)),
        )
        none: tuple[_Run, _Run] = (), ()
        if ragged in contracted[0]:
            outer = contracted[0].index(ragged)
            return _Dims(batch, contracted, none, free, groups, outer)
        outer = free[0].index(ragged)
        return _Dims(batch, (free[0], ()), contracted, ((), free[1]), groups, outer)

    @property
    def is_batch_first(self) -> bool:
        """Whether matrices lie by batch, and then by group; by group first if they are made."""
        return bool(self.groups) and min(self.batch[1], default=self.groups[0]) < self.groups[0]

    @property
    def is_turned(self) -> bool:
        """Whether the contracted dims of a matrix lie behind the others."""
        return max(self.contracted[1], default=0) > max(self.free[1], default=0)

    @property
    def of_matrices(self) -> tuple[_Run, _Run, _Run]:
        """Dims of the right operand, as they lie in memory if they can: else all is copied."""
        outer, inner = self.groups, self.batch[1]
        if self.is_batch_first:
            outer, inner = inner, outer
        rows, columns = self.contracted[1], self.free[1]
        if self.is_turned:
            rows, columns = columns, rows
        return outer + inner, rows, columns


def _others(rank: int, taken: _Run) -> _Run:
    return tuple(i for i in range(rank) if i not in taken)


def local_ragged_dot(
    eqn: Equation, shards: Shards, operands: Sequence[jax.Array]
) -> list[jax.Array]:
    """Strip by strip, with the sizes of the groups inside the local block, and of own groups."""
    lhs, rhs, sizes = operands
    if _is_of_batch(eqn):
        return [_without_groups(eqn, lhs, rhs)]
    numbers, rule = eqn.params["ragged_dot_dimension_numbers"], shards.rule
    dims = _Dims.of(numbers, lhs.ndim, rhs.ndim)
    of_groups = rule.operands[1][dims.groups[0]] if dims.groups else rule.results[0][0]
    count = shards.local_size(of_groups[0]) if of_groups else sizes.shape[-1]
    if shards.is_planned:  # Nothing is split but sequences; groups may be padded, and are empty.
        if more := count - sizes.shape[-1]:
            sizes = jnp.pad(sizes, [(0, 0)] * (sizes.ndim - 1) + [(0, more)])
        return rebind(eqn, (lhs, rhs, sizes), out_sharding=None)
    dtype = eqn.out_avals[0].dtype
    if not (lhs.size and rhs.size and sizes.size):
        return [jnp.zeros(shards.result_shape(eqn), dtype)]
    is_split = of_groups and shards.parts(of_groups[0]) > 1
    (follows,) = rule.operands[0][numbers.lhs_ragged_dimensions[0]] or (None,)
    groups = _groups(
        dims,
        lhs.shape,
        sizes,
        start=0 if follows is None else shards.block_start(follows),
        first=shards.block_start(of_groups[0]) if is_split else 0,
        count=count,
    )
    rows = _merged(lhs, dims.batch[0] + dims.rows[0], dims.contracted[0] + dims.free[0])
    options = {
        # Groups of other devices have as many rows.
        "strip": strip_rows(len(rows), len(groups.first) * sizes.shape[-1] // count),
        "dtype": dtype,
        "precision": eqn.params["precision"],
    }
    kept = [lhs.shape[i] for i in (*dims.batch[0], *dims.free[0])]
    columns = [rhs.shape[i] for i in dims.free[1]]
    if not dims.groups:
        others = _merged(rhs, dims.batch[1] + dims.rows[1], dims.free[1])
        made = rows_by_rows(rows, others, groups, **options)
        return [made.reshape(count, *kept, *columns)]
    matrices = _merged(rhs, *dims.of_matrices)
    made = rows_by_matrices(rows, matrices, groups, is_turned=dims.is_turned, **options)
    of_rows = [lhs.shape[i] for i in dims.rows[0]]
    return [made.reshape(*kept, *of_rows, *columns)]


def _is_of_batch(eqn: Equation) -> bool:
    """Return whether the rows of a group are those of the batch: groups then change nothing."""
    numbers = eqn.params["ragged_dot_dimension_numbers"]
    _, (batch, _) = numbers.dot_dimension_numbers
    return numbers.lhs_ragged_dimensions[0] in batch


def _without_groups(eqn: Equation, lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    return lax.dot_general(
        lhs,
        rhs,
        eqn.params["ragged_dot_dimension_numbers"].dot_dimension_numbers,
        precision=eqn.params["precision"],
        preferred_element_type=eqn.out_avals[0].dtype,
    )


def _groups(
    dims: _Dims,
    shape: Sequence[int],
    sizes: jax.Array,
    *,
    start: jax.Array | int,
    first: jax.Array | int,
    count: int,
) -> Groups:
    """Return where the rows of own groups are among all rows of the local left operand.

    Args:
        dims: The dims of the operands.
        shape: Of the left operand.
        sizes: Rows of each group, of all groups.
        start: The first row of the local block of the ragged dim.
        first: The first own group.
        count: How many are own.
    """
    batch, rows = ([shape[i] for i in run[0]] for run in (dims.batch, dims.rows))
    outer, inner = math.prod(rows[: dims.num_outer]), math.prod(rows[dims.num_outer + 1 :])
    length = rows[dims.num_outer]
    num_batch = math.prod(batch)
    sizes = jnp.broadcast_to(sizes, (*batch, *rows[: dims.num_outer], sizes.shape[-1]))
    sizes = sizes.reshape(num_batch, outer, -1).astype(np.int32)
    ends = jnp.cumsum(sizes, axis=-1, dtype=np.int32) - start
    starts, ends = jnp.clip(ends - sizes, 0, length), jnp.clip(ends, 0, length)
    before = length * jnp.arange(num_batch * outer, dtype=np.int32).reshape(num_batch, outer, 1)

    def own(x: jax.Array) -> jax.Array:
        x = lax.dynamic_slice_in_dim(inner * x, first, count, 2)
        order = (0, 2, 1) if dims.is_batch_first else (2, 0, 1)
        return jnp.transpose(x, order).reshape(count * num_batch, outer)

    return Groups(own(before + starts), own(jnp.maximum(ends - starts, 0)))


def _merged(x: jax.Array, *runs: _Run) -> jax.Array:
    """Return an array with one dim for each run of dims."""
    order = [i for run in runs for i in run]
    sizes = [math.prod(x.shape[i] for i in run) for run in runs]
    return lax.transpose(x, order).reshape(sizes)


def ragged_dot_flop(eqn: Equation) -> float:
    """2 x rows x columns x contracted, with what fills the last strip of each group.

    Where groups are split each device has its share of the rows if the groups are equally large.
    """
    lhs, rhs, sizes = eqn.in_avals
    numbers = eqn.params["ragged_dot_dimension_numbers"]
    if _is_of_batch(eqn):
        (contracted, _), _ = numbers.dot_dimension_numbers
        width = math.prod(lhs.shape[i] for i in contracted)
        return 2.0 * math.prod(eqn.out_avals[0].shape) * width
    dims = _Dims.of(numbers, lhs.ndim, rhs.ndim)
    width, columns = (math.prod(run) for run in _widths(eqn, dims))
    num_rows = math.prod(lhs.shape) // max(1, width)
    num_groups = sizes.shape[-1] * math.prod(lhs.shape[i] for i in dims.batch[0])
    return 2.0 * computed_rows(num_rows, num_groups) * width * columns


def ragged_dot_scratch(eqn: Equation) -> Scratch | None:
    """A matrix, or its sums, and a strip of rows of both kinds; operands that lie otherwise.

    A device holds them whole, however rows and groups are split.  It reads each of its matrices for
    each strip: for some strips however few rows it has, for more of them if it has many.

    Source: temporaries of both products, compiled by XLA:GPU (JAX 0.10.2).
    """
    if _is_of_batch(eqn):
        return None
    lhs, rhs, sizes = eqn.in_avals
    (out,) = eqn.out_avals
    dims = _Dims.of(eqn.params["ragged_dot_dimension_numbers"], lhs.ndim, rhs.ndim)
    width, columns = (math.prod(run) for run in _widths(eqn, dims))
    num_matrices = math.prod(lhs.shape[i] for i in dims.batch[0]) * sizes.shape[-1]
    num_rows = math.prod(lhs.shape) // max(1, width)
    is_made = not dims.groups
    of_row = width * lhs.dtype.itemsize
    of_other = columns * (rhs if is_made else out).dtype.itemsize
    # A matrix is read for each strip; sums are read and written.
    sum_bytes = max(_SUM_BYTES, out.dtype.itemsize)
    of_matrix = width * columns * (sum_bytes if is_made else rhs.dtype.itemsize)
    each = (2 if is_made else 1) * of_matrix
    # Rows are copied; those of the result are made, and put among others.
    moved = 2 * of_row + (2 if is_made else 3) * of_other
    runs = (
        (lhs, (*dims.batch[0], *dims.rows[0], *dims.contracted[0], *dims.free[0])),
        (
            rhs,
            sum(dims.of_matrices, ())
            if dims.groups
            else (*dims.batch[1], *dims.rows[1], *dims.free[1]),
        ),
    )
    copied = [aval for aval, order in runs if list(order) != sorted(order)]
    rule = ragged_dot_rule(eqn)
    loops = {
        loop
        for side in (0, 1)
        for i in (*dims.contracted[side], *dims.free[side])
        for loop in rule.operands[side][i]
    }
    of_groups = rule.operands[1][dims.groups[0]] if dims.groups else rule.results[0][0]
    of_batch = [loop for i in dims.batch[0] for loop in rule.operands[0][i]]
    strip = strip_rows(num_rows, num_matrices)
    return Scratch(
        num_bytes=float(of_matrix + strip * (of_row + of_other)),
        share=1.0,
        traffic_bytes=num_rows * (moved + each / MOST_ROWS),
        whole_bytes=float(sum(aval.size * aval.dtype.itemsize for aval in copied)),
        loops=tuple(sorted(loops)),
        # A matrix is copied, or what was summed is written, too.
        unsplit_traffic_bytes=num_matrices * ((STRIPS_OF_GROUP + 0.5) * each + of_matrix),
        traffic_loops=tuple(sorted({*loops, *of_groups, *of_batch})),
    )


def _widths(eqn: Equation, dims: _Dims) -> tuple[list[int], list[int]]:
    """Return the sizes of what a row of the left operand has, and of the columns."""
    lhs, rhs, _ = eqn.in_avals
    width = [lhs.shape[i] for i in (*dims.contracted[0], *dims.free[0])]
    return width, [rhs.shape[i] for i in dims.free[1]]


TABLE = {
    "ragged_dot_general": PrimitiveRule(
        ragged_dot_rule,
        local_ragged_dot,
        ragged_dot_flop,
        heavy=True,
        scratch=ragged_dot_scratch,
    )
}
