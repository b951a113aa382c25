"""Callbacks of the host and their effects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from jax import core, make_jaxpr
from jax._src import callback, debugging

from meshwise.jax_compat.jaxprs import Aval, ClosedJaxpr, jaxpr_as_fun

_CALLBACK_EFFECTS = (
    debugging.DebugEffect,
    debugging.OrderedDebugEffect,
    callback.IOEffect,
    callback.OrderedIOEffect,
)


# What a call of a function of the host has as its effect in a jaxpr.
CALLBACK_EFFECT = debugging.debug_effect


def is_of_callback(effect: object) -> bool:
    """Tell whether an effect of a jaxpr is a call of a function of the host.

    Args:
        effect: The effect.

    Returns:
        Whether it is.
    """
    return isinstance(effect, _CALLBACK_EFFECTS)


def unordered(params: Mapping[str, Any]) -> tuple[bool, dict[str, Any]]:
    """Take the order out of the parameters of a callback.

    Args:
        params: Those of `debug_callback` (which has an effect), `debug_print` (since 0.8) or
            `io_callback` (which say whether they are ordered).

    Returns:
        Whether it is ordered, and the parameters of one that is not.
    """
    if "effect" in params:
        is_ordered = params["effect"] is debugging.ordered_debug_effect
        return is_ordered, {**params, "effect": debugging.debug_effect}
    return params["ordered"], {**params, "ordered": False}


def with_a_result(name: str, params: Mapping[str, Any]) -> tuple[dict[str, Any], Aval]:
    """Give the bodies of a `cond` or `scan` that returns nothing a result, which is 0.

    Args:
        name: Which of the two.
        params: Its parameters.

    Returns:
        The parameters, and the aval of the result.
    """

    def with_zero(body: ClosedJaxpr) -> ClosedJaxpr:
        def function(*args: Any) -> list[Any]:
            return [*jaxpr_as_fun(body)(*args), np.int32(0)]

        return make_jaxpr(function)(*body.in_avals)

    if name == "cond":
        branches = tuple(map(with_zero, params["branches"]))
        return {**params, "branches": branches}, core.ShapedArray((), np.dtype(np.int32))
    aval = core.ShapedArray((params["length"],), np.dtype(np.int32))
    return {**params, "jaxpr": with_zero(params["jaxpr"])}, aval
