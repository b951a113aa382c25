"""`f[jnp.arange(n), y]` with a batch dim instead of an index column.

JAX traces it as a gather with two indexed dims; the first column of its indices counts 0, 1, ...
along a dim of the indices.  Written with that dim as a batching dim it needs no lookup there, so
the dim is a parallel loop, also for the micro-batch axis.  The trace finds the columns; this file
rewrites the equation.  Research rule 9.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from meshwise.rules.primitive import Equation

_GATHER = "gather"
_FIELDS = {
    # collapsed, index map, operand batching, index batching
    _GATHER: (
        "collapsed_slice_dims",
        "start_index_map",
        "operand_batching_dims",
        "start_indices_batching_dims",
    ),
    "scatter": (
        "inserted_window_dims",
        "scatter_dims_to_operand_dims",
        "operand_batching_dims",
        "scatter_indices_batching_dims",
    ),
}


@dataclass(frozen=True, slots=True)
class BatchingForm:
    """A gather or scatter whose counting columns became batch dims.

    Attributes:
        params: Parameters of the same primitive.
        keep: Index columns that remain, ascending; the new indices are `indices[..., keep]`.
    """

    params: dict[str, Any]
    keep: tuple[int, ...]


def batching_form(eqn: Equation, iota_along: Sequence[int | None]) -> BatchingForm | None:
    """Rewrite a gather or scatter whose index columns count along a dim of the indices.

    Args:
        eqn: A gather or scatter of any kind; its second operand are the indices, columns last.
        iota_along: For each index column the dim of the indices along which it equals
            0, 1, 2, ... (and along the others it is constant), or None.

    Returns:
        The rewritten equation, or None where no column qualifies: the indexed dim must be
        collapsed and as long as the dim of the indices, and at least one column must remain.
    """
    family = _GATHER if eqn.name == _GATHER else "scatter"
    collapsed_name, map_name, operand_name, index_name = _FIELDS[family]
    numbers = eqn.params["dimension_numbers"]
    collapsed = list(getattr(numbers, collapsed_name))
    index_map = list(getattr(numbers, map_name))
    pairs = dict(zip(getattr(numbers, operand_name), getattr(numbers, index_name), strict=True))
    operand, indices = eqn.in_avals[0].shape, eqn.in_avals[1].shape
    keep: list[int] = []
    for column, (dim, along) in enumerate(zip(index_map, iota_along, strict=True)):
        qualifies = (
            along is not None
            and dim in collapsed
            and along not in pairs.values()
            and operand[dim] == indices[along]
        )
        if qualifies:
            collapsed.remove(dim)
            pairs[dim] = along
        else:
            keep.append(column)
    if not keep or len(keep) == len(index_map):
        return None
    ordered = sorted(pairs)
    changed = numbers._replace(
        **{
            collapsed_name: tuple(collapsed),
            map_name: tuple(index_map[column] for column in keep),
            operand_name: tuple(ordered),
            index_name: tuple(pairs[dim] for dim in ordered),
        }
    )
    params = {**eqn.params, "dimension_numbers": changed, "indices_are_sorted": False}
    return BatchingForm(params, tuple(keep))
