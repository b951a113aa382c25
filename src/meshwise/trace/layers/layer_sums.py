"""Sums over all layers, such as the norm of all gradients, with the terms of each layer first.

    0 + a1 + a2 + b1 + b2   ->   (a1 + a2) + (b1 + b2)

So each layer sends one number to be joined with those of other layers, and reduces one, in place
of one for each of its gradients.  The sum differs by rounding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import jax.numpy as jnp
from jax import Array

from meshwise.jax_compat.jaxprs import Eqn, Literal, Var
from meshwise.trace.layers.equations import environment, read, run, traced, variables
from meshwise.trace.layers.split import SplitStep

_ADDITIONS = frozenset(("add", "add_any"))


def with_sums_by_layer(split: SplitStep, layer_of: Mapping[Var, int]) -> SplitStep:
    """Return a step whose update adds up the numbers of each layer before it joins them.

    Args:
        split: The step.
        layer_of: The layer that variables of the update follow from; none or a negative number
            for those that follow from no layer or from several.
    """
    update = split.update
    terms = _terms(split, layer_of)
    if not terms:
        return split

    def regrouped(*operands: Array) -> list[Array]:
        known = environment(update, operands)
        for eqn in update.jaxpr.eqns:
            (result, *_) = eqn.outvars
            if result in terms:
                found = [(_layer(v, layer_of), read(known, v)) for v in terms[result]]
                known[result] = _sum(found)
            else:
                run([eqn], known)
        return [read(known, v) for v in update.jaxpr.outvars]

    return replace(split, update=traced(regrouped, update.in_avals))


def _sum(terms: Sequence[tuple[int, Array]]) -> Array:
    """Return the sum of terms, each with its layer; those of no layer stand alone."""
    sums: dict[int, Array] = {}
    for n, (layer, value) in enumerate(terms):
        key = layer if layer >= 0 else -1 - n
        sums[key] = sums[key] + value if key in sums else value
    first, *others = sums.values()
    for value in others:
        first = jnp.add(first, value)
    return first


def _terms(split: SplitStep, layer_of: Mapping[Var, int]) -> dict[Var, list[Var]]:
    """Return the terms of sums in which some layer has several beside those of others."""
    jaxpr = split.update.jaxpr
    uses = Counter(variables([*(v for e in jaxpr.eqns for v in e.invars), *jaxpr.outvars]))
    terms: dict[Var, list[Var]] = {}
    for eqn in jaxpr.eqns:
        if _adds_numbers(eqn):
            inner = [v for v in variables(eqn.invars) if v in terms and uses[v] == 1]
            terms[eqn.outvars[0]] = [
                term
                for v in eqn.invars
                for term in (terms.pop(v) if v in inner else [v])
                if not _is_zero(term)
            ]
    found: dict[Var, list[Var]] = {}
    for v, some in terms.items():
        layers = Counter(k for k in (_layer(t, layer_of) for t in some) if k >= 0)
        if len(layers) > 1 and max(layers.values()) > 1:
            found[v] = some
    return found


def _layer(atom: Var, layer_of: Mapping[Var, int]) -> int:
    return -1 if isinstance(atom, Literal) else layer_of.get(atom, -1)


def _is_zero(atom: Var) -> bool:
    return isinstance(atom, Literal) and bool(atom.val == 0)


def _adds_numbers(eqn: Eqn) -> bool:
    aval = eqn.outvars[0].aval
    is_number = not aval.shape and jnp.issubdtype(aval.dtype, jnp.inexact)
    return is_number and eqn.primitive.name in _ADDITIONS
