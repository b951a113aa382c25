"""Primitives of libraries, taken as what they are made of.

Equinox, and with it Diffrax, Lineax and Optimistix, define primitives of their own whose
implementation is written in JAX (`unvmap_any`, `vprim`).  No rule names them; their implementation
is traced, and its operations are planned like all others.
"""

from __future__ import annotations

from collections.abc import Iterable

import jax

from meshwise.jax_compat.jaxprs import Aval, ClosedJaxpr, Eqn, FlatJaxpr, Primitive, bodies
from meshwise.rules.table import RULES
from meshwise.rules.unruled import WHY_UNRULED


def implementation(eqn: Eqn) -> ClosedJaxpr | None:
    """Return what an equation does, in operations of JAX; None where that is not known.

    Args:
        eqn: An equation of any primitive.  One of JAX's own, or one whose implementation leaves
            JAX (NumPy, a compiled kernel), has no such body and stays as it is.
    """
    primitive = eqn.primitive
    if primitive.name in RULES or primitive.name in WHY_UNRULED:
        return None

    def run(*operands: object) -> object:
        return primitive.impl(*operands, **eqn.params)

    try:
        body = jax.make_jaxpr(run)(*(var.aval for var in eqn.invars))
    # Whatever another's code raises on tracers: it is not made of JAX's operations.
    except Exception:
        return None
    fits = _types(var.aval for var in eqn.outvars) == _types(body.out_avals)
    return body if fits and not _binds(body.jaxpr, primitive) else None


def _types(avals: Iterable[Aval]) -> list[tuple[object, ...]]:
    """Shapes and dtypes: an implementation may return weaker types than it promises."""
    return [(aval.shape, aval.dtype) for aval in avals]


def _binds(jaxpr: FlatJaxpr, primitive: Primitive) -> bool:
    return any(
        eqn.primitive is primitive or any(_binds(inner, primitive) for inner in bodies(eqn.params))
        for eqn in jaxpr.eqns
    )
