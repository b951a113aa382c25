"""Experts as one operator, and their gradient: rows of each sequence, of all, turned matrices."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from meshwise.rules.products.experts import experts_gradient_p, experts_p
from meshwise.rules.products.row_function import RowFunction, RowProduct
from meshwise.rules.steps import Elementwise, Number
from rule_cases.case import Case, ints

ROWS, WIDTH, INNER, COLUMNS, GROUPS = 8, 3, 4, 2, 4


def step_of(fun: Any, *operands: Any, inputs: tuple[int, ...]) -> Elementwise:
    """Return the step of a function that is one primitive."""
    (eqn,) = jax.make_jaxpr(fun)(*operands).jaxpr.eqns
    return Elementwise(eqn.primitive, tuple(sorted(eqn.params.items())), inputs)


_X = np.ones(2, np.float32)
_MUL = step_of(lax.mul, _X, _X, inputs=(1, 2))


def _product(value: int, matrix: int, *, turned: bool = False) -> RowProduct:
    return RowProduct(value, matrix, turned, "float32", None)


# Gate and up, multiplied, and down.
GATED = RowFunction((_product(0, 0), _product(0, 1), _MUL, _product(3, 2)))
# All matrices with the contracted dim behind the other one; what stands between is never 0.
TURNED = RowFunction(
    (
        _product(0, 0, turned=True),
        Number(3.0, "float32"),
        step_of(lax.add, _X, _X, inputs=(1, 2)),
        _product(3, 1, turned=True),
    )
)


def _cases(
    name: str, function: RowFunction, outer: tuple[int, ...], sizes: Any
) -> tuple[Case, Case]:
    """Return cases of the operator and of its gradient."""
    matrices = []
    for product in function.products:
        shape = (INNER, COLUMNS) if product is function.last else (WIDTH, INNER)
        matrices.append(ints(GROUPS, *(shape[::-1] if product.is_turned else shape)))
    rows, cotangent = ints(*outer, ROWS, WIDTH), ints(*outer, ROWS, COLUMNS)
    params = {"function": function, "num_outer": len(outer)}

    def bound(primitive: Any, *operands: Any) -> Any:
        return primitive.bind(*map(jnp.asarray, operands), **params)

    sizes = np.asarray(sizes, np.int32)
    return (
        Case("experts", name, partial(bound, experts_p), (rows, sizes, *matrices)),
        Case(
            "experts_gradient",
            name,
            partial(bound, experts_gradient_p),
            (rows, sizes, cotangent, *matrices),
        ),
    )


CASES = (
    *_cases("rows of each sequence", GATED, (2,), [[3, 0, 4, 1], [1, 2, 2, 0]]),
    *_cases("rows of all", TURNED, (), [2, 0, 5, 0]),
)
