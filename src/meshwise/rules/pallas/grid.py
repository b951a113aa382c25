"""Loops of the grid of a Pallas kernel that may be split: each turn of one is like the others.

A loop of the grid may be split if

- blocks of operands and results follow it alone: block `i`, or `i // group` where so many turns
  in a row share it (heads of queries that share a head of keys);
- these blocks fill the dim;
- the body does not read its program_id, or only its place in its group;
- a turn leaves nothing to the next one (`carried`), and writes all of results that no block
  follows.  Loops that `jax.vmap` has added never do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from meshwise.jax_compat.jaxprs import FlatJaxpr, Literal
from meshwise.jax_compat.pallas import KernelBlocks, kernel_blocks, written_references
from meshwise.rules.pallas.carried import (
    draws_random_numbers,
    period,
    written_first,
)
from meshwise.rules.pallas.scalars import outputs_of


@dataclass(frozen=True, slots=True, kw_only=True)
class GridLoop:
    """A loop of the grid that may be split.

    Attributes:
        axis: Which one.
        size: Its trip count.
        group: How many turns in a row share blocks of some operands; 1 if none do.
        splits_groups: Whether the turns of a group may be split too.
        dims: For each operand and result with blocks the dim that follows the loop, and whether
            it follows groups of it; None if none does.
        is_shared: Whether some result does not follow it: the last turn says what it is.
    """

    axis: int
    size: int
    group: int
    splits_groups: bool
    dims: tuple[tuple[int, bool] | None, ...]
    is_shared: bool


def grid_loops(params: dict[str, Any]) -> tuple[list[GridLoop], list[str]]:
    """Return the loops of a grid that may be split, and why others may not.

    Args:
        params: The parameters of `pallas_call`.
    """
    mapping = params["grid_mapping"]
    if not all(isinstance(size, int) for size in mapping.grid):
        return [], ["the grid is not known when the step is traced"]
    if draws_random_numbers(params["jaxpr"]):
        return [], ["blocks draw random numbers one after another"]
    loops: list[GridLoop] = []
    reasons: list[str] = []
    blocks = kernel_blocks(mapping)
    follows = [_dependencies(x.map) for x in blocks]
    for axis, size in enumerate(mapping.grid):
        if size > 1:
            found = _grid_loop(params, axis, blocks, follows)
            if isinstance(found, str):
                reasons.append(f"loop {axis} of the grid: {found}")
            else:
                loops.append(found)
    return loops, reasons


def followed_loops(params: dict[str, Any]) -> list[list[int | None]]:
    """Return for each dim of operands and results with blocks the loop of the grid that it follows.

    Args:
        params: The parameters of `pallas_call`.
    """
    mapping = params["grid_mapping"]
    found: list[list[int | None]] = []
    for block in kernel_blocks(mapping):
        follows = _dependencies(block.map)
        found.append([None] * len(block.shape))
        for axis, size in enumerate(mapping.grid):
            dim = _dim_of(block, follows, axis, size) if isinstance(size, int) else None
            if isinstance(dim, tuple) and dim[1] == 1:
                found[-1][dim[0]] = axis
    return found


def _dependencies(index: FlatJaxpr) -> list[frozenset[int]]:
    """Return for each output of an index map the arguments from which it follows."""
    known = {v: frozenset((i,)) for i, v in enumerate(index.invars)}

    def of(atom: Any) -> frozenset[int]:
        return frozenset() if isinstance(atom, Literal) else known.get(atom, frozenset())

    for eqn in index.eqns:
        every = frozenset[int]().union(*map(of, eqn.invars))
        known.update(dict.fromkeys(eqn.outvars, every))
    return [of(v) for v in index.outvars]


def _grid_loop(
    params: dict[str, Any],
    axis: int,
    blocks: Sequence[KernelBlocks],
    follows: Sequence[Sequence[frozenset[int]]],
) -> GridLoop | str:
    mapping, body = params["grid_mapping"], params["jaxpr"]
    size, num_inputs = mapping.grid[axis], mapping.num_inputs
    own = axis not in mapping.vmapped_dims
    # The body counts only loops that are its own.
    counted = [a for a in range(len(mapping.grid)) if a not in mapping.vmapped_dims]
    step = period(body, counted.index(axis)) if own else 1
    if step is None:
        return "the body reads its program_id"
    dims: list[tuple[int, int] | None] = []
    for block, found in zip(blocks, follows, strict=True):
        dim = _dim_of(block, found, axis, size)
        if isinstance(dim, str):
            return dim
        dims.append(dim)
    if size % step:
        return (
            f"the kernel asks for its place in groups of {step}, of which there is no whole number"
        )
    groups = {dim[1] for dim in dims if dim is not None} | {step}
    if len(groups - {1}) > 1:
        return f"blocks follow groups of different sizes, {sorted(groups - {1})}"
    if not any(dims[num_inputs:]):
        return "no block of a result follows it"
    for operand, result in params["input_output_aliases"]:
        operand -= mapping.num_index_operands
        if operand < 0 or dims[operand] != dims[num_inputs + result]:
            return f"operand {operand} and result {result} share memory, but not block for block"
    group = max(groups)
    shared = [i for i in range(num_inputs, len(dims)) if dims[i] is None]
    if own:
        first = mapping.num_index_operands
        # Operands too: a kernel may use one as scratch memory.
        places = [i - first for i in written_references(body)]
        kept = [i for i in places if 0 <= i < num_inputs and dims[i] is None]
        written = _written_first(params, counted, axis, [*kept, *shared])
        if written is None:
            return "what a turn leaves in scratch memory is read in the next one"
        if not written.issuperset(first + i for i in shared):
            return "a turn leaves in a result what turns before have written"
    return GridLoop(
        axis=axis,
        size=size,
        group=group,
        splits_groups=step == 1 and all(dim is None or dim[1] == 1 for dim in dims[num_inputs:]),
        dims=tuple(None if dim is None else (dim[0], dim[1] > 1) for dim in dims),
        is_shared=bool(shared),
    )


def _dim_of(
    block: KernelBlocks, follows: Sequence[frozenset[int]], axis: int, size: int
) -> tuple[int, int] | str | None:
    """Return which dim follows a loop, in groups of how many turns; a text if none does so."""
    found = [dim for dim, arguments in enumerate(follows) if axis in arguments]
    if not found:
        return None
    if len(found) > 1 or follows[found[0]] != {axis}:
        return "a block follows it together with another loop, or in two dims"
    (dim,) = found
    is_same = block.map.outvars[dim] is block.map.invars[axis]
    numbers: list[Any] = list(range(size)) if is_same else []
    for number in range(len(numbers), size):
        arguments: list[Any] = [None] * len(block.map.invars)
        arguments[axis] = number
        numbers.append(outputs_of(block.map, arguments)[dim])
    if None in numbers:
        return "the number of a block is not known before the kernel runs"
    group = size // (numbers[-1] + 1) if 0 <= numbers[-1] < size else 0
    if not group or numbers != [n // group for n in range(size)]:
        return "blocks do not follow it in their order"
    block_size = block.sizes[dim]
    if size % group or block_size is None or block_size * (size // group) != block.shape[dim]:
        return f"its blocks do not fill a dim of size {block.shape[dim]}"
    return dim, group


def _written_first(
    params: dict[str, Any], counted: Sequence[int], axis: int, shared: Sequence[int]
) -> frozenset[int] | None:
    """Return what the first block of each turn writes whole; None if it reads what others left."""
    mapping, body = params["grid_mapping"], params["jaxpr"]
    first = len(body.invars) - mapping.num_scratch_operands
    carried = [mapping.num_index_operands + i for i in shared]
    carried += range(first, len(body.invars))
    # In its first block a turn stands at the first turn of each loop inside of it.
    places = {number: 0 for number, a in enumerate(counted) if a >= axis}
    return written_first(body, carried, places)
