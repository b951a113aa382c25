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
from meshwise.rules.products.strips import Groups, rows_by_matrices, rows_by_rows, strip_rows

# Some dims of an operand.
_Run = tuple[int, ...]
# Sums have at least so many bytes.
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


def _others(rank: int, taken: _Run) -> _Run:
    return tuple(i for i in range(rank) if i not in taken)


def local_ragged_dot(
    eqn: Equation, shards: Shards, operands: Sequence[jax.Array]
) -> list[jax.Array]:
    """Strip by strip, with the sizes of the groups inside the local block, and of own groups."""
    if shards.is_planned:  # Rows are then split by sequences alone.
        return rebind(eqn, operands, out_sharding=None)
    lhs, rhs, sizes = operands
    numbers = eqn.params["ragged_dot_dimension_numbers"]
    (ragged,) = numbers.lhs_ragged_dimensions
    dtype, precision = eqn.out_avals[0].dtype, eqn.params["precision"]
    if _is_of_batch(eqn):
        both = numbers.dot_dimension_numbers
        made = lax.dot_general(lhs, rhs, both, precision=precision, preferred_element_type=dtype)
        return [made]
    if not (lhs.size and rhs.size):
        return [jnp.zeros(shards.result_shape(eqn), dtype)]
    follows = shards.rule.operands[0][ragged]
    if follows and shards.parts(follows[0]) > 1:
        start, length = shards.block_start(follows[0]), shards.local_size(follows[0])
        ends = jnp.cumsum(sizes, axis=-1, dtype=sizes.dtype) - start
        sizes = jnp.clip(ends, 0, length) - jnp.clip(ends - sizes, 0, length)
    dims = _Dims.of(numbers, lhs.ndim, rhs.ndim)
    rule = shards.rule
    of_groups = rule.operands[1][dims.groups[0]] if dims.groups else rule.results[0][0]
    first, count = 0, sizes.shape[-1]
    if of_groups and shards.parts(of_groups[0]) > 1:
        first, count = shards.block_start(of_groups[0]), shards.local_size(of_groups[0])
    groups = _groups(dims, lhs.shape, sizes, first, count)
    rows = _merged(lhs, (*dims.batch[0], *dims.rows[0]), (*dims.contracted[0], *dims.free[0]))
    # Groups of other devices have as many rows.
    strip = strip_rows(len(rows), groups.first.size * sizes.shape[-1] // count)
    options = {"strip": strip, "dtype": dtype, "precision": precision}
    kept = [lhs.shape[i] for i in (*dims.batch[0], *dims.free[0])]
    columns = [rhs.shape[i] for i in dims.free[1]]
    if not dims.groups:
        others = _merged(rhs, (*dims.batch[1], *dims.rows[1]), dims.free[1])
        made = rows_by_rows(rows, others, groups, **options)
        return [made.reshape(count, *kept, *columns)]
    # As they lie in memory, as far as they can: all of them would be copied.
    runs = (dims.contracted[1], dims.free[1])
    is_turned = max(runs[0], default=0) > max(runs[1], default=0)
    matrices = _merged(rhs, (*dims.groups, *dims.batch[1]), *(runs[::-1] if is_turned else runs))
    made = rows_by_matrices(rows, matrices, groups, is_turned=is_turned, **options)
    of_rows = [lhs.shape[i] for i in dims.rows[0]]
    return [made.reshape(*kept, *of_rows, *columns)]


def _groups(
    dims: _Dims, shape: Sequence[int], sizes: jax.Array, first: jax.Array | int, count: int
) -> Groups:
    """Return where the rows of own groups are among all rows of the local left operand.

    Args:
        dims: The dims of the operands.
        shape: Of the left operand.
        sizes: Rows of each group, of all groups.
        first: The first own group.
        count: How many are own.
    """
    batch, rows = ([shape[i] for i in run[0]] for run in (dims.batch, dims.rows))
    outer, inner = math.prod(rows[: dims.num_outer]), math.prod(rows[dims.num_outer + 1 :])
    length = rows[dims.num_outer]
    num_batch = math.prod(batch)
    sizes = jnp.broadcast_to(sizes, (*batch, *rows[: dims.num_outer], sizes.shape[-1]))
    sizes = sizes.reshape(num_batch, outer, -1).astype(np.int32)
    before = length * jnp.arange(num_batch * outer, dtype=np.int32).reshape(num_batch, outer, 1)
    starts = before + jnp.cumsum(sizes, axis=-1, dtype=np.int32) - sizes

    def own(x: jax.Array) -> jax.Array:
        x = lax.dynamic_slice_in_dim(inner * x, first, count, 2)
        return jnp.transpose(x, (2, 0, 1)).reshape(count * num_batch, outer)

    return Groups(own(starts), own(sizes))


def _merged(x: jax.Array, *runs: _Run) -> jax.Array:
    """Return an array with one dim for each run of dims."""
    order = [i for run in runs for i in run]
    sizes = [math.prod(x.shape[i] for i in run) for run in runs]
    return lax.transpose(x, order).reshape(sizes)


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Sizes of a whole operator whose rows are not in the batch.

    Attributes:
        num_rows: Rows of all groups.
        num_groups: Groups; those of each sequence count by themselves.
        num_matrices: Matrices that rows are multiplied with, or that are made of rows.
        widths: Elements of a row of the left operand, and of the result or the right operand.
        itemsize: Bytes of an element of the left operand.
        is_contracted: Whether rows are contracted.
    """

    num_rows: int
    num_groups: int
    num_matrices: int
    widths: tuple[int, int]
    itemsize: int
    is_contracted: bool

    @staticmethod
    def of(eqn: Equation) -> _Sizes:
        """Return the sizes of an equation."""
        lhs, rhs, sizes = eqn.in_avals
        dims = _Dims.of(eqn.params["ragged_dot_dimension_numbers"], lhs.ndim, rhs.ndim)
        num_batch = math.prod(lhs.shape[i] for i in dims.batch[0])
        outer = math.prod(lhs.shape[i] for i in dims.rows[0][: dims.num_outer])
        num_matrices = num_batch * sizes.shape[-1]
        width = math.prod(lhs.shape[i] for i in (*dims.contracted[0], *dims.free[0]))
        return _Sizes(
            num_rows=num_batch * math.prod(lhs.shape[i] for i in dims.rows[0]),
            num_groups=num_matrices * outer,
            num_matrices=num_matrices,
            widths=(width, math.prod(rhs.shape[i] for i in dims.free[1])),
            itemsize=lhs.dtype.itemsize,
            is_contracted=not dims.groups,
        )

    @property
    def strip(self) -> int:
        """Rows of a strip at most."""
        return strip_rows(self.num_rows, self.num_groups)

    @property
    def num_strips(self) -> float:
        """Strips, if each group but the empty ones fills half of its last one."""
        return self.num_rows / self.strip + min(self.num_groups, self.num_rows) / 2


def ragged_dot_flop(eqn: Equation) -> float:
    """2 x rows x columns x contracted, with the rows that fill the last strip of each group.

    Where groups are split each device has its share of the rows if the groups are equally large.
    """
    if _is_of_batch(eqn):
        (contracted, _), _ = eqn.params["ragged_dot_dimension_numbers"].dot_dimension_numbers
        width = math.prod(eqn.in_avals[0].shape[i] for i in contracted)
        return 2.0 * math.prod(eqn.out_avals[0].shape) * width
    sizes = _Sizes.of(eqn)
    return 2.0 * sizes.num_strips * sizes.strip * math.prod(sizes.widths)


def ragged_dot_scratch(eqn: Equation) -> Scratch | None:
    """A matrix, or its sums, and a strip of rows of both kinds.

    A device holds them whole, however rows and groups are split.

    Source: temporaries of both products, compiled by XLA:GPU (JAX 0.10.2).
    """
    if _is_of_batch(eqn):
        return None
    sizes = _Sizes.of(eqn)
    elements, strips = math.prod(sizes.widths), sizes.num_strips
    of_sums = max(_SUM_BYTES, eqn.out_avals[0].dtype.itemsize)
    # Rows are copied; those of the result are made, and put among others.
    moved = 2 * sum(sizes.widths) + (0 if sizes.is_contracted else sizes.widths[1])
    # A matrix is copied once and read for each strip; sums are written and read for each.
    of_matrices = (
        (2 * strips + sizes.num_matrices) * of_sums
        if sizes.is_contracted
        else (strips + sizes.num_matrices) * sizes.itemsize
    )
    rule, numbers = ragged_dot_rule(eqn), eqn.params["ragged_dot_dimension_numbers"]
    dims = _Dims.of(numbers, *(aval.ndim for aval in eqn.in_avals[:2]))
    of_width = [
        rule.operands[side][i]
        for side in (0, 1)
        for i in (*dims.contracted[side], *dims.free[side])
    ]
    return Scratch(
        num_bytes=float(
            elements * (of_sums if sizes.is_contracted else sizes.itemsize)
            + sizes.strip * sum(sizes.widths) * sizes.itemsize
        ),
        share=1.0,
        traffic_bytes=elements * of_matrices + sizes.num_rows * moved * sizes.itemsize,
        loops=tuple(sorted({loop for loops in of_width for loop in loops})),
    )


def _is_of_batch(eqn: Equation) -> bool:
    """Return whether the rows of a group are those of the batch: groups then change nothing."""
    numbers = eqn.params["ragged_dot_dimension_numbers"]
    _, (batch, _) = numbers.dot_dimension_numbers
    return numbers.lhs_ragged_dimensions[0] in batch


TABLE = {
    "ragged_dot_general": PrimitiveRule(
        ragged_dot_rule,
        local_ragged_dot,
        ragged_dot_flop,
        heavy=True,
        scratch=ragged_dot_scratch,
    )
}
