"""Opaque kernels: a function of arrays, planned by the loops that it states.

The statement travels in the parameters of one primitive, so there is no registry to keep: where
the equation goes, its rule goes.  A foreign primitive for which the user of `parallelize` gives a
rule is bound as such a kernel when the step is flattened.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, update_wrapper
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
from jax import core
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.typing import ArrayLike

from meshwise.errors import TraceError
from meshwise.graph.loops import LoopRule
from meshwise.rules.kernel_loops import KernelLoops, loop_rule, terms
from meshwise.rules.primitive import Equation, PrimitiveRule, Shards, rebind, result_elements

# What `rules=` of `parallelize` may hold: a statement, or a function of parameters and operands
# (shapes and dtypes) that makes one, or None where it has none.
ForeignRule = KernelLoops | Callable[..., KernelLoops | None]


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel with its loops.

    Attributes:
        name: The name for messages and plans.
        run: The function, from arrays to the list of results.
        statement: The loops of the kernel.
        flop: FLOP on whole operands; None for one a result element.
    """

    name: str
    run: Callable[..., Sequence[jax.Array]]
    statement: KernelLoops
    flop: float | None

    def __repr__(self) -> str:
        """The same in each process: it is part of the plan."""
        return f"{self.name}({self.statement}; flop={self.flop})"


kernel_p = Primitive("sharded_kernel")
kernel_p.multiple_results = True


def _run(*operands: jax.Array, kernel: Kernel) -> list[jax.Array]:
    return list(kernel.run(*operands))


def _shapes(*operands: core.ShapedArray, kernel: Kernel) -> list[core.ShapedArray]:
    specs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in operands]
    found = jax.eval_shape(kernel.run, *specs)
    return [core.ShapedArray(x.shape, x.dtype) for x in found]


def _refuse_jvp(primals: object, tangents: object, *, kernel: Kernel) -> NoReturn:
    del primals, tangents
    raise TraceError(
        f"{kernel.name} is a sharded_kernel, which has no derivative of its own; wrap what calls "
        "it in jax.custom_vjp, whose backward pass may call another sharded_kernel"
    )


def _batched(
    operands: Sequence[jax.Array], dims: Sequence[int | None], *, kernel: Kernel
) -> tuple[list[jax.Array], tuple[int, ...]]:
    """Return one more parallel loop in front of the batched operands and of all results."""
    mapped = [dim is not None for dim in dims]
    operands = [
        x if dim is None else jnp.moveaxis(x, dim, 0) for x, dim in zip(operands, dims, strict=True)
    ]
    of_operands, of_results = terms(kernel.statement)
    letter = next(c for c in string.ascii_letters if c not in kernel.statement.loops)
    left = ",".join(
        letter + term if is_mapped else term
        for term, is_mapped in zip(of_operands, mapped, strict=True)
    )
    right = ",".join(letter + term for term in of_results)
    size = next(x.shape[0] for x, is_mapped in zip(operands, mapped, strict=True) if is_mapped)
    wider = Kernel(
        kernel.name,
        jax.vmap(kernel.run, in_axes=tuple(0 if is_mapped else None for is_mapped in mapped)),
        replace(kernel.statement, loops=f"{left}->{right}"),
        None if kernel.flop is None else kernel.flop * size,
    )
    results = kernel_p.bind(*operands, kernel=wider)
    return results, (0,) * len(results)


kernel_p.def_impl(_run)
kernel_p.def_abstract_eval(_shapes)
mlir.register_lowering(kernel_p, mlir.lower_fun(_run, multiple_results=True))
ad.primitive_jvps[kernel_p] = _refuse_jvp
batching.primitive_batchers[kernel_p] = _batched


def sharded_kernel(
    fun: Callable[..., Any] | None = None,
    *,
    loops: str,
    whole: str = "",
    sum: str = "",
    max: str = "",
    min: str = "",
    flop: Callable[..., float] | None = None,
) -> Any:
    """Return a function of arrays as one opaque operator with stated loops; decorator or call.

    `parallelize` does not look into it: it runs the function on the parts of the operands that
    the statement allows, each device on its own.  It is for a Pallas kernel, a call into a library,
    or anything whose own equations would be planned badly.

        @mw.sharded_kernel(loops="bhqd,bhkd,bhkd->bhqd", whole="kd", flop=lambda q, k, v: ...)
        def attention(q, k, v): ...

    Outside of `parallelize` it is the function.  It has no derivative: put `jax.custom_vjp`
    around it.  `jax.vmap` adds a parallel loop.

    Args:
        fun: Arrays to an array, or to a tuple of arrays.  It must take parts of any size, and on
            parts give the parts of the results.
        loops: Dims of operands and results, a letter a loop; see `KernelLoops`.
        whole: Loops that must not be split.
        sum: Loops over which the results are sums.
        max: Loops over which they are maxima.
        min: Loops over which they are minima.
        flop: FLOP as a function of the whole operands; one a result element by default.

    Returns:
        A function of the same arguments.

    Raises:
        TraceError: the statement contradicts itself; when called, that it does not fit.
    """
    statement = KernelLoops(loops=loops, whole=whole, sum=sum, max=max, min=min, flop=flop)
    if fun is None:
        return partial(_wrapped, statement=statement)
    return _wrapped(fun, statement)


def _wrapped(fun: Callable[..., Any], statement: KernelLoops) -> Callable[..., Any]:
    name = getattr(fun, "__name__", type(fun).__name__)

    def run(*operands: jax.Array) -> tuple[jax.Array, ...]:
        out = fun(*operands)
        return tuple(out) if isinstance(out, tuple | list) else (out,)

    def call(*operands: ArrayLike) -> jax.Array | tuple[jax.Array, ...]:
        arrays = [jnp.asarray(operand) for operand in operands]
        specs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays]
        found = jax.eval_shape(fun, *specs)
        results = found if isinstance(found, tuple | list) else (found,)
        loop_rule(statement, name, [x.shape for x in arrays], [x.shape for x in results])
        flop = None if statement.flop is None else float(statement.flop(*specs))
        out = kernel_p.bind(*arrays, kernel=Kernel(name, run, statement, flop))
        return tuple(out) if isinstance(found, tuple | list) else out[0]

    return update_wrapper(call, fun)


def check_rules(rules: object) -> dict[str, ForeignRule]:
    """Check the rules of foreign primitives.

    Args:
        rules: What the user of `parallelize` gave; None for none.

    Raises:
        TraceError: they are no mapping of names to statements or functions.
    """
    if rules is None:
        return {}
    if not isinstance(rules, Mapping):
        raise TraceError(
            f"rules must map names of primitives to KernelLoops, as "
            f"{{'my_kernel': mw.KernelLoops(loops='bd,d->bd')}}, got {rules!r:.80}"
        )
    for name, rule in rules.items():
        if not isinstance(name, str) or not (isinstance(rule, KernelLoops) or callable(rule)):
            raise TraceError(
                f"rules={{{name!r}: {rule!r:.60}}}: the rule of a primitive is a KernelLoops, or "
                "a function of its parameters and operands that gives one"
            )
    return dict(rules)


def foreign_kernel(
    primitive: Primitive,
    params: Mapping[str, object],
    avals: Sequence[core.ShapedArray],
    rule: ForeignRule,
) -> Kernel | None:
    """Return the kernel as which a foreign equation is bound; None if the rule says nothing.

    Args:
        primitive: The primitive of the equation.
        params: Its parameters.
        avals: Shapes and dtypes of its operands.
        rule: What the user said of the primitive.

    Raises:
        TraceError: The rule gives no statement.
    """
    specs = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
    statement = rule if isinstance(rule, KernelLoops) else rule(dict(params), *specs)
    if statement is None:
        return None
    if not isinstance(statement, KernelLoops):
        raise TraceError(
            f"the rule of {primitive.name} gave {statement!r:.80}; it gives a KernelLoops, or None"
        )
    local = statement.local

    def run(*operands: jax.Array) -> tuple[jax.Array, ...]:
        if local is None:
            out = primitive.bind(*operands, **params)
        else:
            out = local(dict(params), *operands)
        return tuple(out) if isinstance(out, tuple | list) else (out,)

    flop = None if statement.flop is None else float(statement.flop(*specs))
    return Kernel(primitive.name, run, statement, flop)


def _rule(eqn: Equation) -> LoopRule:
    kernel: Kernel = eqn.params["kernel"]
    return loop_rule(
        kernel.statement,
        kernel.name,
        [aval.shape for aval in eqn.in_avals],
        [aval.shape for aval in eqn.out_avals],
    )


def _local(eqn: Equation, shards: Shards, operands: Sequence[jax.Array]) -> list[jax.Array]:
    """Return the function on the local parts.

    Raises:
        TraceError: it does not give the parts of the results.
    """
    kernel: Kernel = eqn.params["kernel"]
    results = rebind(eqn, operands)
    for k, result in enumerate(results):
        want, got = shards.result_shape(eqn, k), jnp.shape(result)
        if got != want:
            parts = ", ".join(str(jnp.shape(x)) for x in operands)
            raise TraceError(
                f"{kernel.name} gives result {k} of shape {got} for parts of shapes {parts}; by "
                f"its loops, {kernel.statement}, it is {want}. Take sizes from the operands "
                "inside the kernel, or say which loops are whole"
            )
    return results


def _flop(eqn: Equation) -> float:
    stated = eqn.params["kernel"].flop
    return result_elements(eqn) if stated is None else stated


TABLE = {"sharded_kernel": PrimitiveRule(_rule, _local, _flop)}
