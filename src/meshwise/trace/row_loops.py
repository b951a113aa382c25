"""Loops that `vmap` made of `while_loop`: one predicate for each row.

JAX keeps such a loop as one equation whose predicate has dims; it runs until no row goes on, and
rows that are done keep what they have.  That meaning is written out here, as XLA gets it from JAX:
the predicate is whether any row goes on, and the body chooses row by row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from meshwise.jax_compat.jaxprs import closed_jaxpr, jaxpr_as_fun, while_parts

_BY_ROW = "stops_by_row"  # a parameter beside those of JAX


def stops_by_row(params: Mapping[str, Any]) -> bool:
    """Return whether more trips of a `while` change no row that is done: each may stop by itself.

    Args:
        params: What `with_one_predicate` returns.
    """
    return params.get(_BY_ROW, False)


def with_one_predicate(
    params: Mapping[str, Any], inputs: Sequence[int]
) -> tuple[dict[str, Any], list[int]]:
    """Return a `while` equation whose predicate is one boolean.

    Args:
        params: The parameters of the equation.
        inputs: Its operands, by number.

    Returns:
        Parameters and operands; those that are given if the predicate is one boolean already.
    """
    predicate, body, num_consts, num_body_consts = while_parts(params)
    goes_on, again = map(closed_jaxpr, (predicate, body))
    if not goes_on.out_avals[0].shape:
        return dict(params), list(inputs)

    def any_goes_on(*operands: Array) -> list[Array]:
        return [jnp.any(row) for row in jaxpr_as_fun(goes_on)(*operands)]

    def again_where_it_goes_on(*operands: Array) -> list[Array]:
        consts, own = operands[:num_consts], operands[num_consts:]
        carry = own[num_body_consts:]
        (rows,) = jaxpr_as_fun(goes_on)(*consts, *carry)
        return [
            lax.select(lax.broadcast_in_dim(rows, old.shape, range(rows.ndim)), new, old)
            for new, old in zip(jaxpr_as_fun(again)(*own), carry, strict=True)
        ]

    in_avals = [*goes_on.in_avals[:num_consts], *again.in_avals]
    made = {
        "cond_jaxpr": jax.make_jaxpr(any_goes_on)(*goes_on.in_avals),
        "body_jaxpr": jax.make_jaxpr(again_where_it_goes_on)(*in_avals),
        "body_nconsts": num_consts + num_body_consts,
        _BY_ROW: True,
    }
    return {**params, **made}, [*inputs[:num_consts], *inputs]
