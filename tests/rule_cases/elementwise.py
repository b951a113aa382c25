"""Element-wise primitives, identities and casts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.layout import Layout, with_layout_constraint
from jax.extend.core import primitives

from rule_cases.case import Case, bools, floats, ints

# Last bits of vectorised and scalar code differ.
_ULPS = 2e-6
# Series and continued fractions.
_SPECIAL = 2e-4

_EXACT_UNARY: dict[str, Callable[..., Any]] = {
    "abs": lax.abs,
    "ceil": lax.ceil,
    "copy": primitives.copy_p.bind,
    "floor": lax.floor,
    "is_finite": lax.is_finite,
    "neg": lax.neg,
    "reduce_precision": lambda x: lax.reduce_precision(x, 5, 3),
    "round": lax.round,
    "sign": lax.sign,
    "square": lax.square,
    "stop_gradient": lax.stop_gradient,
}
_CLOSE_UNARY: dict[str, Callable[..., Any]] = {
    "acos": lax.acos,
    "asin": lax.asin,
    "asinh": lax.asinh,
    "atan": lax.atan,
    "atanh": lax.atanh,
    "cbrt": lax.cbrt,
    "cos": lax.cos,
    "cosh": lax.cosh,
    "erf": lax.erf,
    "erf_inv": lax.erf_inv,
    "erfc": lax.erfc,
    "exp": lax.exp,
    "exp2": lax.exp2,
    "expm1": lax.expm1,
    "integer_pow": lambda x: lax.integer_pow(x, 3),
    "log": lax.log,
    "log1p": lax.log1p,
    "logistic": lax.logistic,
    "rsqrt": lax.rsqrt,
    "sin": lax.sin,
    "sinh": lax.sinh,
    "sqrt": lax.sqrt,
    "tan": lax.tan,
    "tanh": lax.tanh,
}
_SPECIAL_UNARY: dict[str, Callable[..., Any]] = {
    "acosh": lambda x: lax.acosh(x),
    "bessel_i0e": lax.bessel_i0e,
    "bessel_i1e": lax.bessel_i1e,
    "digamma": lax.digamma,
    "lgamma": lax.lgamma,
}
_INTEGER_UNARY: dict[str, Callable[..., Any]] = {
    "clz": lax.clz,
    "not": lax.bitwise_not,
    "population_count": lax.population_count,
}
_EXACT_BINARY: dict[str, Callable[..., Any]] = {
    "add": lax.add,
    "add_any": primitives.add_jaxvals_p.bind,
    "eq": lax.eq,
    "eq_to": primitives.eq_to_p.bind,
    "ge": lax.ge,
    "gt": lax.gt,
    "le": lax.le,
    "le_to": primitives.le_to_p.bind,
    "lt": lax.lt,
    "lt_to": primitives.lt_to_p.bind,
    "max": lax.max,
    "min": lax.min,
    "mul": lax.mul,
    "ne": lax.ne,
    "nextafter": lax.nextafter,
    "rem": lax.rem,
    "sub": lax.sub,
}
_SPECIAL_BINARY: dict[str, Callable[..., Any]] = {
    "atan2": lax.atan2,
    "igamma": lax.igamma,
    "igamma_grad_a": lax.igamma_grad_a,
    "igammac": lax.igammac,
    "pow": lax.pow,
    "zeta": lambda x, y: lax.zeta(x + 2, y),
    "polygamma": lambda x, y: lax.polygamma(jnp.round(x) + 1, y),
}
_INTEGER_BINARY: dict[str, Callable[..., Any]] = {
    "and": lax.bitwise_and,
    "mulhi": lax.mulhi if "mulhi" in dir(lax) else primitives.mulhi_p.bind,
    "or": lax.bitwise_or,
    "shift_left": lax.shift_left,
    "shift_right_arithmetic": lax.shift_right_arithmetic,
    "shift_right_logical": lax.shift_right_logical,
    "xor": lax.bitwise_xor,
}

# Of so many primitives with one rule and one local form, these are no `costly` ones.
_KEPT = (
    *("abs", "add", "copy", "eq", "erf_inv", "exp", "integer_pow", "is_finite", "max", "mulhi"),
    *("nextafter", "not", "reduce_precision", "shift_left", "stop_gradient"),
)
_A, _B = ints(8, dtype=np.int32, low=0), ints(8, dtype=np.int32, low=1, high=5)
_EACH = (
    *(Case(n, "1-D", f, (ints(8),)) for n, f in _EXACT_UNARY.items()),
    *(Case(n, "1-D", f, (floats(8),), _ULPS) for n, f in _CLOSE_UNARY.items()),
    *(
        Case(n, "1-D", f, (floats(8, low=1.1, high=3),), _SPECIAL)
        for n, f in _SPECIAL_UNARY.items()
    ),
    *(Case(n, "1-D", f, (_A,)) for n, f in _INTEGER_UNARY.items()),
    *(Case(n, "1-D", f, (ints(8), ints(8, low=1))) for n, f in _EXACT_BINARY.items()),
    *(
        Case(n, "1-D", f, (floats(8), floats(8, low=1.1, high=3)), _SPECIAL, costly=True)
        for n, f in _SPECIAL_BINARY.items()
    ),
    *(Case(n, "1-D", f, (_A, _B)) for n, f in _INTEGER_BINARY.items()),
)
_SPLIT = tuple(replace(case, costly=case.primitive not in _KEPT) for case in _EACH)

_WIDE = (
    Case("add", "3-D", lax.add, (ints(8, 2, 16), ints(8, 2, 16))),
    Case("add", "dim of size 1", jnp.add, (ints(8, 1), ints(1, 16))),
    Case("add", "stretched without broadcast", primitives.add_p.bind, (ints(8, 1), ints(8, 16))),
    Case("mul", "scalar", primitives.mul_p.bind, (np.float32(3), ints(8, 4))),
    Case("mul", "integers", lax.mul, (_A, _B)),
    Case("mul", "bfloat16", lax.mul, (ints(8, dtype=jnp.bfloat16),) * 2),
    Case("sub", "unsigned wraps", lax.sub, (_A.astype(np.uint8), _B.astype(np.uint8))),
    Case("add", "size 0", lax.add, (ints(0, 8), ints(0, 8))),
    Case("add", "scalars", lax.add, (ints(), ints())),
    Case("add", "odd size", lax.add, (ints(3, 8), ints(3, 8))),
    Case("div", "powers of two", lax.div, (ints(8, 4), np.float32(2) ** ints(8, 4))),
    Case("div", "integers truncate", lax.div, (ints(8, dtype=np.int32), _B)),
    Case("max", "3-D", lax.max, (ints(8, 2, 4), ints(8, 2, 4))),
    Case("complex", "jointly", lax.complex, (ints(8), ints(8))),
    Case("conj", "complex", lax.conj, (ints(8, dtype=np.complex64),)),
    Case("real", "complex", lax.real, (ints(8, dtype=np.complex64),)),
    Case("imag", "complex", lax.imag, (ints(8, dtype=np.complex64) * 1j,)),
    Case(
        "clamp",
        "scalar bounds",
        lambda x: lax.clamp(np.float32(-2), x, np.float32(3)),
        (ints(8, 4),),
    ),
    Case("clamp", "whole bounds", lax.clamp, (ints(8, high=0), ints(8), ints(8, low=1))),
    Case("select_n", "whole predicate", jnp.where, (bools(8, 4), ints(8, 4), -ints(8, 4))),
    Case("select_n", "scalar predicate", lax.select, (np.bool_(True), ints(8, 4), -ints(8, 4))),
    Case(
        "select_n",
        "three cases",
        lax.select_n,
        (ints(8, dtype=np.int32, low=0, high=3), ints(8), -ints(8), ints(8) + 10),
    ),
    Case("select_n", "booleans", jnp.where, (bools(8), bools(8), ~bools(8))),
    Case("threefry2x32", "1-D", primitives.threefry2x32_p.bind, (_A.astype(np.uint32),) * 4),
    Case(
        "regularized_incomplete_beta",
        "1-D",
        lax.betainc,
        (floats(8, low=1, high=2), floats(8, low=1, high=3), floats(8)),
        _SPECIAL,
        costly=True,
    ),
)

_CASTS = (
    Case(
        "convert_element_type",
        "widening",
        lambda x: x.astype(jnp.float32),
        (ints(8, 4, dtype=jnp.bfloat16),),
    ),
    Case(
        "convert_element_type",
        "narrowing",
        lambda x: x.astype(jnp.bfloat16),
        (ints(8, 4) * 1000.5,),
    ),
    Case(
        "convert_element_type",
        "half to bfloat16",
        lambda x: x.astype(jnp.bfloat16),
        (ints(8, dtype=np.float16),),
    ),
    Case("convert_element_type", "to bool", lambda x: x.astype(bool), (ints(8, 4),)),
    Case("convert_element_type", "from bool", lambda x: x.astype(jnp.float32), (bools(8, 4),)),
    Case("convert_element_type", "to complex", lambda x: x.astype(jnp.complex64), (ints(8),)),
    Case(
        "bitcast_convert_type",
        "same width",
        lambda x: lax.bitcast_convert_type(x, jnp.int32),
        (ints(8, 4),),
    ),
    Case(
        "bitcast_convert_type",
        "to halves",
        lambda x: lax.bitcast_convert_type(x, jnp.uint16),
        (ints(8, 4),),
    ),
    Case(
        "bitcast_convert_type",
        "from halves",
        lambda x: lax.bitcast_convert_type(x, jnp.float32),
        (ints(8, 4, 2, dtype=np.uint16),),
    ),
)


def _constrained(x: Any) -> Any:
    mesh = jax.make_mesh((1,), ("one",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("one")
    return lax.with_sharding_constraint(x, jax.sharding.NamedSharding(mesh, spec))


_IDENTITIES = (
    # The flat program holds barriers of one operand; the rule takes any number.
    Case("optimization_barrier", "one operand", lax.optimization_barrier, (ints(8, 4),)),
    Case("name", "2-D", lambda x: checkpoint_name(x, "kept"), (ints(8, 4),)),
    Case("device_put", "two operands", lambda x, y: jax.device_put((x, y)), (ints(8), ints(4, 8))),
    Case(
        "layout_constraint",
        "columns first",
        lambda x: with_layout_constraint(x, Layout((1, 0))),
        (jnp.asarray(ints(8, 4)),),
    ),
    # JAX makes one of the first cotangent.
    Case("reshard", "gradient", jax.grad(lambda x: jnp.sum(_constrained(x) ** 2)), (ints(8, 4),)),
    Case("sharding_constraint", "on another mesh", _constrained, (ints(8, 4),)),
)

_LARGE = np.array([-(2**31), -123456789, -1, 0, 1, 65537, 2**30 + 7, 2**31 - 1], np.int32)
_HIGH_WORDS = tuple(
    Case("mulhi", f"large, {dtype.__name__}", lax.mulhi, (x, x[::-1].copy()), x64=True)
    for dtype, x in (
        (np.int32, _LARGE),
        (np.uint32, _LARGE.astype(np.uint32)),
        (np.int64, _LARGE.astype(np.int64) * 2**31 + 12345),
        (np.int8, _LARGE.astype(np.int8)),
    )
)
# XLA refuses the operator itself where a program has several devices.
ON_DEVICES = (Case("mulhi", "on devices", lax.mulhi, (_LARGE, _LARGE[::-1].copy())),)

CASES = (*_HIGH_WORDS, *_SPLIT, *_WIDE, *_CASTS, *_IDENTITIES)
