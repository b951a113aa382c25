"""Kernels of Pallas: blocks of their operands, and what their bodies write."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from jax import tree_util
from jax._src.state import indexing
from jax._src.state import types as state_types

from meshwise.jax_compat.jaxprs import Eqn, FlatJaxpr, Literal


def is_whole_block(eqn: Eqn) -> bool:
    """Tell whether a read or write of a reference inside a kernel touches all of it.

    Args:
        eqn: A `get` or a `swap` (its second operand is what is written).

    Returns:
        Whether it does.
    """
    first = 2 if eqn.primitive.name == "swap" else 1
    transforms = tree_util.tree_unflatten(eqn.params["tree"], eqn.invars[first:])
    return all(
        isinstance(transform, indexing.NDIndexer)
        and all(map(_is_whole_dim, transform.indices, transform.shape))
        for transform in transforms
    )


def _is_whole_dim(index: Any, size: int) -> bool:
    if isinstance(index, indexing.Slice):  # pyright: ignore[reportPrivateImportUsage]
        return (index.start, index.size, index.stride) == (0, size, 1)
    value = index.val if isinstance(index, Literal) else index
    return size == 1 and isinstance(value, int | np.integer)


def written_references(body: Any) -> list[int]:
    """Find the arguments of the body of a kernel that it writes to.

    Args:
        body: A jaxpr on references.

    Returns:
        Their positions.
    """
    changes = (state_types.WriteEffect, state_types.AccumEffect)
    found: list[Any] = [effect for effect in body.effects if isinstance(effect, changes)]
    every = [*body.constvars, *body.invars]
    # JAX names the variable since 0.10, its position before.
    own = {e.input if hasattr(e, "input") else every[e.input_index] for e in found}
    return [i for i, var in enumerate(body.invars) if var in own]


class KernelBlocks(NamedTuple):
    """How an operand or a result of a Pallas kernel is cut into blocks.

    Attributes:
        sizes: Size of a block along each dim; None where it is no plain block.
        map: From numbers of the grid (then scalars that are there before) to that of the block.
        shape: Shape of the array.
    """

    sizes: tuple[int | None, ...]
    map: FlatJaxpr
    shape: tuple[int, ...]


def kernel_blocks(grid_mapping: Any) -> tuple[KernelBlocks, ...]:
    """Read the block maps of a Pallas kernel: those of its operands, then those of its results.

    Args:
        grid_mapping: The parameter of `pallas_call`.

    Returns:
        One for each.
    """
    from jax.experimental import pallas

    def size_of(dim: Any) -> int | None:
        if isinstance(dim, pallas.Squeezed):
            return 1
        return dim.block_size if isinstance(dim, pallas.Blocked) else None

    return tuple(
        KernelBlocks(
            sizes=tuple(map(size_of, mapping.block_shape)),
            map=mapping.index_map_jaxpr.jaxpr,
            shape=tuple(mapping.array_aval.shape),
        )
        for mapping in grid_mapping.block_mappings
    )


def with_kernel_shapes(
    params: Mapping[str, Any], grid: Sequence[int], shapes: Sequence[Sequence[int]]
) -> dict[str, Any]:
    """Return the parameters of a Pallas kernel on a part of its grid.

    Args:
        params: The parameters of `pallas_call`.
        grid: The part of the grid.
        shapes: Shapes of the parts of operands and results that have blocks.

    Returns:
        The same kernel on arrays of these shapes.
    """
    whole = params["grid_mapping"]
    mappings = tuple(
        mapping.replace(array_aval=mapping.array_aval.update(shape=tuple(shape)))
        for mapping, shape in zip(whole.block_mappings, shapes, strict=True)
    )
    share = math.prod(grid) / max(1, math.prod(whole.grid))
    cost = params["cost_estimate"]
    if cost is not None:
        cost = replace(
            cost,
            flops=int(cost.flops * share),
            transcendentals=int(cost.transcendentals * share),
            bytes_accessed=int(cost.bytes_accessed * share),
        )
    avals = tuple(
        aval.update(shape=tuple(shape))
        for aval, shape in zip(params["out_avals"], shapes[whole.num_inputs :], strict=True)
    )
    return {
        **params,
        "grid_mapping": whole.replace(grid=tuple(grid), block_mappings=mappings),
        "out_avals": avals,
        "cost_estimate": cost,
    }
