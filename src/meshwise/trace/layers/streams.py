"""Constants that only say which random numbers a layer draws: no cost or layout depends on them.

Layers fold their own numbers into one key, or take their own keys of a split one.  Such a constant
counts as a stream only where the key follows from what the layer is given: what follows from
constants alone may be known while the step is traced, and decide what it does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import jax
import jax.numpy as jnp

from meshwise.jax_compat.jaxprs import Eqn, Var
from meshwise.trace.layers.equations import variables

SLICE = "slice"
_FOLD, _CONVERT, _UNWRAP = "random_fold_in", "convert_element_type", "random_unwrap"


def stream_equations(
    equations: Sequence[Eqn], given: Iterable[Var], results: Iterable[Var]
) -> frozenset[Eqn]:
    """Find the equations whose constants are streams.

    These are literals folded into a given key, those that are converted for nothing else, and
    static slices of given keys, of which start and limit are streams.

    Args:
        equations: In order.
        given: Variables that follow from arguments.
        results: Variables that are read later.
    """
    known = set(given)
    words: set[Var] = set()
    found: set[Eqn] = set()
    for eqn in equations:
        name, first = eqn.primitive.name, variables(eqn.invars[:1])
        if name == _UNWRAP:
            words.update(eqn.outvars)
        if name == _FOLD or (name == SLICE and any(_is_key(v) or v in words for v in first)):
            found.update(eqn for v in first if v in known)
        if not known.isdisjoint(variables(eqn.invars)):
            known.update(eqn.outvars)
    folded: set[Var] = set()
    other = set(variables(results))
    for eqn in reversed(equations):
        name, read = eqn.primitive.name, variables(eqn.invars)
        if name == _FOLD and eqn in found:
            other.update(variables(eqn.invars[:1]))
            folded.update(variables(eqn.invars[1:]))
        elif name == _CONVERT and eqn.outvars[0] in folded and eqn.outvars[0] not in other:
            found.add(eqn)
            folded.update(read)
        else:
            other.update(read)
    return frozenset(found)


def _is_key(variable: Var) -> bool:
    return bool(jnp.issubdtype(variable.aval.dtype, jax.dtypes.prng_key))
