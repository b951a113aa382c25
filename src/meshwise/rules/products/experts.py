"""Experts as one operator: a function of rows in groups, and of matrices of each group.

    experts            rows, sizes, matrices -> results of rows
    experts_gradient   rows, sizes, cotangent, matrices -> gradients for rows, for matrices

Rows go to the devices of their groups once for all products, and results come back once.  What
stands between the products is in memory for one strip of rows only, and is computed again for the
gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import mlir

from meshwise.rules.primitive import Equation, PrimitiveRule, Shards, rebind
from meshwise.rules.products.experts_rule import BACKWARD, FORWARD, experts_rule
from meshwise.rules.products.experts_work import (
    backward_flop,
    backward_scratch,
    forward_flop,
    forward_scratch,
)
from meshwise.rules.products.ragged_rule import RaggedDims
from meshwise.rules.products.row_function import RowFunction
from meshwise.rules.products.row_groups import LocalGroups, padded_sizes
from meshwise.rules.products.strips import (
    Groups,
    gradients_of_rows,
    most_rows,
    rows_by_matrices,
)

experts_p = Primitive("experts")
experts_gradient_p = Primitive("experts_gradient")
experts_gradient_p.multiple_results = True


def _dims(rank: int, num_outer: int) -> RaggedDims:
    """Return the dims of a product of the rows with a matrix; the last dim is what a row has."""
    rows = tuple(range(rank - 1))
    none: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    return RaggedDims(none, (rows, ()), ((rank - 1,), (1,)), ((), (2,)), (0,), num_outer)


def _by_row(x: Array) -> Array:
    return x.reshape(-1, x.shape[-1])


def _results(function: RowFunction, local: LocalGroups, operands: Sequence[Array]) -> Array:
    """Return the results of the rows of a device, in the dims of its rows."""
    rows, _, *matrices = operands

    def made(came: list[Array], own: Groups, sums: Any) -> tuple[list[Array], Any]:
        strips = local.strips(came[0], own, most_rows(makes_matrices=False))
        found = rows_by_matrices(
            came[0], matrices, own, function=function, strips=strips, some=local.some
        )
        return [found], sums

    columns = function.num_columns([x.shape for x in matrices])
    nothing = jnp.zeros((rows.size // rows.shape[-1], columns), function.dtype)
    (out,), _ = local.run([_by_row(rows)], made, [nothing], None)
    return out.reshape(*rows.shape[:-1], -1)


def _gradients(function: RowFunction, local: LocalGroups, operands: Sequence[Array]) -> list[Array]:
    """Return the gradients for the rows of a device, and for matrices of its groups."""
    rows, _, cotangents, *matrices = operands

    def made(came: list[Array], own: Groups, sums: Any) -> tuple[list[Array], Any]:
        strips = local.strips(came[0], own, most_rows(makes_matrices=True))
        found, sums = gradients_of_rows(
            came[0],
            came[1],
            matrices,
            own,
            sums,
            function=function,
            strips=strips,
            some=local.some,
        )
        return [found], sums

    given = [_by_row(rows), _by_row(cotangents)]
    sums = [local.nothing(x.shape[1:], x.dtype) for x in matrices]
    (found,), sums = local.run(given, made, [jnp.zeros_like(given[0])], sums)
    of_matrices = [x.astype(y.dtype) for x, y in zip(sums, matrices, strict=True)]
    return [found.reshape(rows.shape), *of_matrices]


def _forward(*operands: Array, function: RowFunction, num_outer: int) -> Array:
    rows, sizes, *_ = operands
    local = LocalGroups.alone(_dims(rows.ndim, num_outer), rows.shape, sizes)
    return _results(function, local, operands)


def _backward(*operands: Array, function: RowFunction, num_outer: int) -> list[Array]:
    rows, sizes, *_ = operands
    local = LocalGroups.alone(_dims(rows.ndim, num_outer), rows.shape, sizes)
    return _gradients(function, local, operands)


def _forward_aval(*avals: Any, function: RowFunction, num_outer: int) -> ShapedArray:
    del num_outer
    rows, _, *matrices = avals
    columns = function.num_columns([x.shape for x in matrices])
    return ShapedArray((*rows.shape[:-1], columns), function.dtype)


def _backward_avals(*avals: Any, function: RowFunction, num_outer: int) -> list[ShapedArray]:
    del function, num_outer
    rows, _, _, *matrices = avals
    return [ShapedArray(x.shape, x.dtype) for x in (rows, *matrices)]


experts_p.def_impl(_forward)
experts_p.def_abstract_eval(_forward_aval)
mlir.register_lowering(experts_p, mlir.lower_fun(_forward, multiple_results=False))
experts_gradient_p.def_impl(_backward)
experts_gradient_p.def_abstract_eval(_backward_avals)
mlir.register_lowering(experts_gradient_p, mlir.lower_fun(_backward, multiple_results=True))


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def run_experts(
    function: RowFunction, num_outer: int, rows: Array, sizes: Array, matrices: Sequence[Array]
) -> Array:
    """Return what a function makes of rows in groups.

    Args:
        function: The function.
        num_outer: Dims of the rows before the one in which groups lie one after the other.
        rows: (outer dims ..., row, inner dims ..., feature).
        sizes: Rows of each group: (outer dims ..., group) or (group,).
        matrices: For each matrix of the function those of all groups: (group, one, other).

    Returns:
        (outer dims ..., row, inner dims ..., column); 0 for rows of no group.
    """
    return experts_p.bind(rows, sizes, *matrices, function=function, num_outer=num_outer)


def _run_forward(
    function: RowFunction, num_outer: int, rows: Array, sizes: Array, matrices: Sequence[Array]
) -> Any:
    return run_experts(function, num_outer, rows, sizes, matrices), (rows, sizes, matrices)


def _run_backward(function: RowFunction, num_outer: int, kept: Any, cotangent: Array) -> Any:
    rows, sizes, matrices = kept
    of_rows, *of_matrices = experts_gradient_p.bind(
        rows, sizes, cotangent, *matrices, function=function, num_outer=num_outer
    )
    return of_rows, np.zeros(sizes.shape, jax.dtypes.float0), of_matrices


run_experts.defvjp(_run_forward, _run_backward)


def _local(eqn: Equation, shards: Shards, operands: Sequence[Array], num_first: int) -> list[Array]:
    """Run with the rows of own groups: the local ones, or those that come."""
    function, num_outer = eqn.params["function"], eqn.params["num_outer"]
    rows, sizes, *rest = operands
    loops = shards.rule.operands[num_first][0]
    # Only sequences are split.  Padded groups have no rows.
    if shards.is_planned:
        count = shards.local_size(loops[0]) if loops else sizes.shape[-1]
        return rebind(eqn, (rows, padded_sizes(sizes, count), *rest))
    if any(0 in x.shape for x in operands):
        every = range(len(eqn.out_avals))
        return [jnp.zeros(shards.result_shape(eqn, k), eqn.out_avals[k].dtype) for k in every]
    local = LocalGroups.of(shards, _dims(rows.ndim, num_outer), rows.shape, sizes, loops)
    if num_first == FORWARD:
        return [_results(function, local, operands)]
    return _gradients(function, local, operands)


TABLE = {
    "experts": PrimitiveRule(
        partial(experts_rule, num_first=FORWARD),
        partial(_local, num_first=FORWARD),
        forward_flop,
        heavy=True,
        scratch=forward_scratch,
    ),
    "experts_gradient": PrimitiveRule(
        partial(experts_rule, num_first=BACKWARD),
        partial(_local, num_first=BACKWARD),
        backward_flop,
        heavy=True,
        scratch=backward_scratch,
    ),
}
