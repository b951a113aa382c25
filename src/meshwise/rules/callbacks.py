"""Calls of Python from a step: `jax.debug.print`, `debug.callback`, `io_callback`, `pure_callback`.

A callback sees whole values, as under `jax.jit`.  One that has an effect is called once for all
devices, by the first one of the mesh; `host_call` is such a callback.  Ordered ones wait for each
other by a token, a number that each takes and gives, since JAX orders none on several devices.

A function without effects is called by each device, so that nothing needs to be sent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import ShapedArray
from jax.experimental import io_callback
from jax.extend.core import Primitive
from jax.interpreters import mlir

from meshwise.graph.graph import HOST_CALL
from meshwise.graph.loops import LoopRule
from meshwise.jax_compat.callbacks import CALLBACK_EFFECT
from meshwise.rules.loop_list import dims_like
from meshwise.rules.primitive import Equation, PrimitiveRule, Shards, no_flop, rebind

_ADDRESS = re.compile(r"0x[0-9a-f]+")
# The names of such equations in JAX.
WITH_EFFECT = frozenset({"debug_callback", "debug_print", "io_callback"})
TOKEN = ShapedArray((), np.dtype(np.int32))


@dataclass(frozen=True, slots=True, eq=False)
class HostCall:
    """An equation of JAX's that calls a function of the host; two are never equal.

    Attributes:
        primitive: The primitive of JAX.
        params: Its parameters, unordered.
    """

    primitive: Primitive
    params: Mapping[str, Any]


# Operands: a token and those of the callback.  Result: a token.
host_call_p = Primitive(HOST_CALL)
host_call_p.multiple_results = True


@host_call_p.def_effectful_abstract_eval
def _abstract(*avals: ShapedArray, call: HostCall) -> tuple[list[ShapedArray], set[Any]]:
    del avals, call
    return [TOKEN], {CALLBACK_EFFECT}


def _rule(eqn: Equation) -> LoopRule:
    return LoopRule(
        (),
        tuple(dims_like(aval.shape) for aval in eqn.in_avals),
        tuple(dims_like(aval.shape) for aval in eqn.out_avals),
        whole="a function of the host, which sees whole values",
    )


def _called(token: jax.Array, *values: jax.Array, call: HostCall) -> list[jax.Array]:
    def on_host(token: np.ndarray, *values: np.ndarray) -> np.ndarray:
        # Outside of any trace such a primitive calls its function at once.
        call.primitive.bind(*values, **call.params)
        return token

    return [io_callback(on_host, jax.ShapeDtypeStruct((), jnp.int32), token, *values)]


mlir.register_lowering(host_call_p, mlir.lower_fun(_called, multiple_results=True))


def _called_once(eqn: Equation, shards: Shards, operands: Sequence[jax.Array]) -> list[jax.Array]:
    """Call the function on the first device of the mesh."""
    is_first = shards.is_first_device()
    if is_first is True:
        return rebind(eqn, operands)
    return lax.cond(is_first, lambda *x: rebind(eqn, x), lambda token, *_: [token], *operands)


def _detail(eqn: Equation) -> str:
    """Return what JAX calls it: functions of the host look different in each trace and process."""
    host_call: HostCall = eqn.params["call"]
    return host_call.primitive.name


def _pure_detail(eqn: Equation) -> str:
    """Return its parameters, without where the function lies in memory."""
    return _ADDRESS.sub("", ",".join(f"{key}={value}" for key, value in eqn.params.items()))


TABLE = {
    HOST_CALL: PrimitiveRule(_rule, _called_once, no_flop, detail=_detail),
    "pure_callback": PrimitiveRule(_rule, flop=no_flop, detail=_pure_detail),
}
