"""Element-wise operations on values of the pool, each with operands of its domain."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.layout import Layout, with_layout_constraint
from jax.extend.core import primitives

from property.pool import LIMIT, Pool

Builder = Callable[[Pool], Any]


def _threefry(x: jax.Array, y: jax.Array) -> jax.Array:
    # Of one shape under `vmap` too: JAX's own form fails on others.
    words = [v.astype(jnp.uint32) for v in (x, y, x, y)]
    return primitives.threefry2x32_p.bind(*words)[0]


_REALS: dict[str, Callable[..., Any]] = {
    "abs": lax.abs,
    "asinh": lax.asinh,
    "atan": lax.atan,
    "bessel_i0e": lax.bessel_i0e,
    "bessel_i1e": lax.bessel_i1e,
    "ceil": lambda x: lax.ceil(x / 2),
    "copy": lambda x: primitives.copy_p.bind(x),
    "cos": lax.cos,
    "erf": lax.erf,
    "erfc": lax.erfc,
    "floor": lambda x: lax.floor(x / 2),
    "integer_pow": lambda x: lax.integer_pow(x, 3),
    "is_finite": lax.is_finite,
    "logistic": lax.logistic,
    "neg": lax.neg,
    "reduce_precision": lambda x: lax.reduce_precision(x, 8, 2),
    "round": lambda x: lax.round(x / 2, lax.RoundingMethod.TO_NEAREST_EVEN),
    "sign": lax.sign,
    "sin": lax.sin,
    "square": lax.square,
    "stop_gradient": lambda x: (
        primitives.stop_gradient_p.bind(x)
        if "stop_gradient_p" in dir(primitives)
        else lax.stop_gradient(x)
    ),
    "tanh": lax.tanh,
    "sinh": lambda x: lax.sinh(x / 4),
    "cosh": lambda x: lax.cosh(x / 4),
    "exp": lambda x: lax.exp(x / 4),
    "exp2": lambda x: lax.exp2(x / 4),
    "expm1": lambda x: lax.expm1(x / 4),
    "tan": lambda x: lax.tan(x / 8),
    "name": lambda x: checkpoint_name(x, "kept"),
    "optimization_barrier": lax.optimization_barrier,
    "device_put": jax.device_put,
    "convert": lambda x: x.astype(jnp.float32).astype(jnp.bfloat16),
}
# On values above 0.
_POSITIVE: dict[str, Callable[..., Any]] = {
    "cbrt": lax.cbrt,
    "digamma": lax.digamma,
    "lgamma": lax.lgamma,
    "log": lax.log,
    "log1p": lax.log1p,
    "rsqrt": lax.rsqrt,
    "sqrt": lax.sqrt,
    "acosh": lambda x: lax.acosh(x + 1),
}
# On values between -1 and 1.
_INSIDE: dict[str, Callable[..., Any]] = {
    "acos": lax.acos,
    "asin": lax.asin,
    "atanh": lax.atanh,
    "erf_inv": lax.erf_inv,
}
_TWO_REALS: dict[str, Callable[..., Any]] = {
    "add": lax.add,
    "add_any": lambda x, y: primitives.add_jaxvals_p.bind(x, y),
    "complex": lambda x, y: lax.conj(lax.complex(x, y)),
    "eq": lax.eq,
    "eq_to": lambda x, y: primitives.eq_to_p.bind(x, y),
    "ge": lax.ge,
    "gt": lax.gt,
    "le": lax.le,
    "le_to": lambda x, y: primitives.le_to_p.bind(x, y),
    "lt": lax.lt,
    "lt_to": lambda x, y: primitives.lt_to_p.bind(x, y),
    "max": lax.max,
    "min": lax.min,
    "mul": lambda x, y: lax.mul(x, y) / 4,
    "ne": lax.ne,
    "sub": lax.sub,
    "clamp": lambda x, y: lax.clamp(-jnp.abs(y), x, jnp.abs(y)),
    "clamp_scalars": lambda x, y: lax.clamp(-2.0, x + y, 3.0),
}
_TWO_POSITIVE: dict[str, Callable[..., Any]] = {
    "atan2": lax.atan2,
    "div": lax.div,
    "nextafter": lambda x, y: lax.nextafter(*lax.stop_gradient((x, y))),
    "pow": lambda x, y: lax.pow(x / 4, y / 4),
    "rem": lambda x, y: lax.rem(x, y),
    "zeta": lambda x, y: lax.zeta(*lax.stop_gradient((x + 1, y))),
    "polygamma": lambda x, y: lax.polygamma(lax.stop_gradient(x), y),
    "igamma": lambda x, y: lax.igamma(lax.stop_gradient(x), y),
    "igammac": lambda x, y: lax.igammac(lax.stop_gradient(x), y),
    "igamma_grad_a": lambda x, y: lax.igamma_grad_a(*lax.stop_gradient((x, y))),
    "betainc": lambda x, y: lax.betainc(*lax.stop_gradient((x, y, x / (x + y)))),
}
_INTEGERS: dict[str, Callable[..., Any]] = {
    "clz": lax.clz,
    "not": lax.bitwise_not,
    "population_count": lax.population_count,
    "bits": lambda x: lax.bitcast_convert_type(x, jnp.uint8),
    "int_abs": lambda x: lax.abs(x - 5),
    "int_to_float": lambda x: x.astype(jnp.float64),
    "int_to_bool": lambda x: (x % 3).astype(jnp.bool_),
}
_TWO_INTEGERS: dict[str, Callable[..., Any]] = {
    "and": lax.bitwise_and,
    "int_div": lambda x, y: lax.div(x, y % 4 + 1),
    "int_mul": lax.mul,
    "int_pow": lambda x, y: lax.integer_pow(x, 2) - y,
    "int_rem": lambda x, y: lax.rem(x, y % 4 + 1),
    "mulhi": lambda x, y: lax.mulhi(x << 24, y << 24),
    "or": lax.bitwise_or,
    "shift_left": lambda x, y: lax.shift_left(x, y % 8),
    "shift_right_arithmetic": lambda x, y: lax.shift_right_arithmetic(x - 9, y % 8),
    "shift_right_logical": lambda x, y: lax.shift_right_logical(x - 9, y % 8),
    "threefry2x32": lambda x, y: _threefry(x ^ (y & 0), y ^ (x & 0)),
    "xor": lax.bitwise_xor,
}


def _unary(fun: Callable[..., Any], pool: Pool) -> Any:
    return fun(pool.float())


def _positive(fun: Callable[..., Any], pool: Pool) -> Any:
    return fun(jnp.abs(pool.float()) + 0.75)


def _inside(fun: Callable[..., Any], pool: Pool) -> Any:
    return 4 * fun(pool.float() / (LIMIT + 1))


def _binary(fun: Callable[..., Any], pool: Pool) -> Any:
    x = pool.float()
    return fun(x, pool.like(x))


def _two_positive(fun: Callable[..., Any], pool: Pool) -> Any:
    x = pool.float()
    return fun(jnp.abs(x) + 1, jnp.abs(pool.like(x)) + 0.75)


def _integer(fun: Callable[..., Any], pool: Pool) -> Any:
    return fun(pool.int())


def _two_integers(fun: Callable[..., Any], pool: Pool) -> Any:
    x = pool.int()
    return fun(x, pool.ints(*x.shape, high=16))


def stretched(pool: Pool) -> Any:
    """An operand with dims of size 1 and lower rank."""
    x = pool.float(2)
    row = x[tuple(slice(0, 1) if d % 2 else slice(None) for d in range(x.ndim))]
    return x + (row if row.size else 0.0) if x.size else x + 1.0


def scalar(pool: Pool) -> Any:
    """A scalar operand."""
    return lax.max(pool.float(), pool.floats())


def select(pool: Pool) -> Any:
    """A choice of two or three, by booleans or numbers."""
    x = pool.float()
    if pool.rng.random() < 0.5:
        return jnp.where(pool.bools(*x.shape), x, -x)
    return lax.select_n(pool.ints(*x.shape, high=3), x, pool.like(x), -x)


def select_by_scalar(pool: Pool) -> Any:
    """One predicate for all."""
    x = pool.float()
    return lax.select(pool.bools(), x, pool.like(x))


def logic(pool: Pool) -> Any:
    """Booleans."""
    x = pool.bool()
    return (x & pool.bools(*x.shape)) | ~pool.bools(*x.shape) ^ x


def layout(pool: Pool) -> Any:
    """A layout of the memory of one device."""
    return with_layout_constraint(pool.float(2), Layout(tuple(range(pool.float(2).ndim))[::-1]))


def bitcast_back(pool: Pool) -> Any:
    """Floats as words and back."""
    words = lax.bitcast_convert_type(pool.float(), jnp.uint32)
    return lax.bitcast_convert_type(words, jnp.float64)


TABLE: dict[str, Builder] = {
    name: partial(how, fun)
    for how, table in (
        (_unary, _REALS),
        (_positive, _POSITIVE),
        (_inside, _INSIDE),
        (_binary, _TWO_REALS),
        (_two_positive, _TWO_POSITIVE),
        (_integer, _INTEGERS),
        (_two_integers, _TWO_INTEGERS),
    )
    for name, fun in table.items()
} | {
    fun.__name__: fun for fun in (stretched, scalar, select, select_by_scalar, logic, bitcast_back)
}
# Under `vmap` the rank would be another.
PLAIN_ONLY: dict[str, Builder] = {"layout": layout}
