"""Which values of the forward pass a gradient flows through.

A value that a cut crosses has a cotangent if it is on a path from the parameters to the loss that
can be differentiated.  Others, as the maximum that a softmax subtracts, go forward only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import jax.numpy as jnp

from meshwise.jax_compat.jaxprs import Eqn, Var
from meshwise.trace.layers.equations import variables

# Their derivative is zero everywhere.  What is missing here costs a crossing of zeros, no more.
_FLAT = frozenset(
    ("stop_gradient", "sign", "floor", "ceil", "round", "nextafter", "bitcast_convert_type")
)


def on_gradient_path(
    equations: Sequence[Eqn], roots: Iterable[Var], losses: Iterable[Var]
) -> frozenset[Var]:
    """Variables with a cotangent that the gradients of the roots need.

    Args:
        equations: The equations of the forward pass, in order.
        roots: What the loss is differentiated for.
        losses: What is differentiated.
    """
    passing = [e for e in equations if e.primitive.name not in _FLAT]
    moved = set(_inexact(roots))
    for eqn in passing:
        if not moved.isdisjoint(_inexact(eqn.invars)):
            moved.update(_inexact(eqn.outvars))
    read = set(_inexact(losses))
    for eqn in reversed(passing):
        if not read.isdisjoint(_inexact(eqn.outvars)):
            read.update(_inexact(eqn.invars))
    return frozenset(moved & read)


def _inexact(atoms: Iterable[Var]) -> list[Var]:
    return [v for v in variables(atoms) if jnp.issubdtype(v.aval.dtype, jnp.inexact)]
