"""`value_and_grad` and `grad`: drop-in for JAX's, kept as one primitive while a step is traced.

The primitive holds the loss jaxpr, so that a pipeline can cut the forward pass and differentiate
each piece.  On one mesh it is expanded where it stands.  Parallel code of the user's own is taken
out of the loss that is cut, and stays in the one (`own`) that JAX differentiates.

Source: docs/decisions/0020.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import cache, partial, wraps
from typing import Any

import jax
import jax.numpy as jnp
from jax import core
from jax.extend.core import jaxprs_in_params
from jax.interpreters import ad, batching, mlir

from meshwise.errors import LossError
from meshwise.jax_compat.contexts import explicit, is_staged, is_tracing, names_axes, users_mesh
from meshwise.jax_compat.jaxprs import Primitive, consts_as_inputs, is_tracer, jaxpr_as_fun
from meshwise.jax_compat.source_lines import source_line
from meshwise.trace.call import leaf_spans, under_mesh
from meshwise.trace.changed_arguments import IN_LOSS, keeping_arguments
from meshwise.trace.libraries import library_of
from meshwise.trace.own_parallel import on_whole_arrays

# Lines below this folder are not the user's.
loss_and_grad_p = Primitive("loss_and_grad")
loss_and_grad_p.multiple_results = True


def _expanded(*args: Any, loss: Any, wrt: tuple[int, ...]) -> list[Any]:
    """Value, auxiliary results, gradients with respect to the inputs `wrt`, flat."""

    def scalar(*args: Any) -> tuple[Any, list[Any]]:
        value, *aux = jaxpr_as_fun(loss)(*args)
        return value, aux

    (value, aux), grads = jax.value_and_grad(scalar, argnums=wrt, has_aux=True)(*args)
    return [value, *aux, *grads]


def _flat(*args: Any, loss: Any, own: Any, wrt: tuple[int, ...], expand: Any) -> list[Any]:
    del loss, expand
    return _expanded(*args, loss=own, wrt=wrt)


def _abstract(*avals: Any, loss: Any, own: Any, wrt: tuple[int, ...], expand: Any) -> list[Any]:
    del own
    ends = [loss.out_avals[0], *(avals[i] for i in wrt)]
    if any(a.weak_type for a in ends) or not _is_plain(loss.jaxpr):
        # Whether a gradient is weakly typed depends on the loss, or it has none.
        return list(expand().out_avals)
    return [*loss.out_avals, *(core.ShapedArray(avals[i].shape, avals[i].dtype) for i in wrt)]


# What may have no gradient, or one whose type its author chose.
_NOT_PLAIN = ("while", "custom_vjp_call", "custom_vjp_call_jaxpr")


def _is_plain(jaxpr: Any) -> bool:
    """Return whether all has a gradient, and cotangents of the types of the values."""
    return all(
        eqn.primitive.name not in _NOT_PLAIN
        and (
            eqn.primitive in ad.primitive_jvps
            or eqn.primitive.name == "custom_jvp_call"
            or not eqn.invars
        )
        and all(map(_is_plain, jaxprs_in_params(eqn.params)))
        for eqn in jaxpr.eqns
    )


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
    outs, out_tangents = jax.jvp(
        lambda *xs: _flat(*xs, **params), tuple(primals), tuple(map(ad.instantiate_zeros, tangents))
    )
    zeros = [
        ad.Zero(jax.typeof(t)) if t.dtype == jax.dtypes.float0 else t  # of whole numbers and keys
        for t in out_tangents
    ]
    return outs, zeros


def _batch(args: Sequence[Any], dims: Sequence[Any], **params: Any) -> Any:
    axes = tuple(dims)  # None is not mapped
    outs = jax.vmap(lambda *xs: _flat(*xs, **params), in_axes=axes)(*args)
    return outs, [0] * len(outs)


loss_and_grad_p.def_impl(_flat)
loss_and_grad_p.def_abstract_eval(_abstract)
ad.primitive_jvps[loss_and_grad_p] = _jvp
batching.primitive_batchers[loss_and_grad_p] = _batch
mlir.register_lowering(loss_and_grad_p, mlir.lower_fun(_flat, multiple_results=True))


class _NotALoss(Exception):
    """The function does not return what a loss returns; JAX says what is wrong."""


def value_and_grad(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    **kwargs: Any,
) -> Callable[..., Any]:
    """Like `jax.value_and_grad`; under `parallelize` it marks where the loss is.

    What else JAX refuses is left to JAX, so that the errors are the same.

    Args:
        fun: The loss; returns a real scalar, or `(scalar, aux)` with `has_aux`.
        argnums: Positional arguments to differentiate.
        has_aux: Whether `fun` returns auxiliary data.
        holomorphic: As for `jax.value_and_grad`; such a loss is not marked.
        allow_int: Likewise.
        **kwargs: Whatever else `jax.value_and_grad` takes.

    Returns:
        A function with the arguments of `fun` that returns `(value, gradients)`.

    Raises:
        LossError: the loss is not a real scalar.
        TypeError: whatever else JAX refuses, as an argument that is not differentiable.
    """
    plain = jax.value_and_grad(fun, argnums, has_aux, holomorphic, allow_int, **kwargs)

    @wraps(fun)
    def wrapped(*args: Any, **fun_kwargs: Any) -> Any:
        if holomorphic or allow_int or not is_tracing():
            return plain(*args, **fun_kwargs)
        marked = _marked(fun, argnums, has_aux, args, fun_kwargs)
        return plain(*args, **fun_kwargs) if marked is None else marked[0]

    return wrapped


def grad(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    **kwargs: Any,
) -> Callable[..., Any]:
    """Differentiate a loss as `jax.grad` does; under `parallelize` it marks where the loss is.

    Args:
        fun: The loss, as for `value_and_grad`.
        argnums: Positional arguments to differentiate.
        has_aux: Whether `fun` returns auxiliary data.
        holomorphic: As for `value_and_grad`.
        allow_int: As for `value_and_grad`.
        **kwargs: Whatever else `jax.grad` takes.

    Returns:
        A function with the arguments of `fun` that returns the gradients.
    """
    both = value_and_grad(fun, argnums, has_aux, holomorphic, allow_int, **kwargs)
    return without_value(both, has_aux=has_aux)


def without_value(both: Callable[..., Any], *, has_aux: bool) -> Callable[..., Any]:
    """Return a function that gives the gradients only, and auxiliary data if there is any.

    Args:
        both: Returns `(value, gradients)`.
        has_aux: Whether the value is `(value, aux)`.
    """

    @wraps(both)
    def wrapped(*args: Any, **fun_kwargs: Any) -> Any:
        value, grads = both(*args, **fun_kwargs)
        return (grads, value[1]) if has_aux else grads

    return wrapped


def _marked(
    fun: Callable[..., Any],
    argnums: int | Sequence[int],
    has_aux: bool,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[Any] | None:
    """Bind a loss as one primitive; return a tuple of its results, None if it must be JAX's own."""
    leaves, tree = jax.tree.flatten((args, kwargs))
    spans = leaf_spans(args)
    nums = _resolved(argnums, len(args))
    wrt_leaves = [i for n in nums for i in range(*spans[n])]
    for i in wrt_leaves:
        _refuse_constants(fun, leaves[i], [args[n] for n in nums])
    if not wrt_leaves or not all(_is_differentiable(leaves[i]) for i in wrt_leaves):
        return None
    # Other arguments stay what they are: a loss may branch on a flag, or take a string.
    dynamic = [i for i, x in enumerate(leaves) if i in set(wrt_leaves) or is_tracer(x)]
    operands = [leaves[i] for i in dynamic]
    if not all(map(_is_fit, operands)):
        return None
    try:
        closed, refill_aux = _traced_loss(fun, has_aux, leaves, tree, dynamic)
    except _NotALoss:
        return None
    value_aval = closed.out_avals[0]
    if value_aval.shape != () or not jnp.issubdtype(value_aval.dtype, jnp.floating):
        name = getattr(fun, "__name__", "the loss")
        raise LossError(
            f"{name} returns {value_aval.str_short()}, but a loss must be a real scalar; reduce "
            "it, for example with jnp.mean"
        )
    if closed.effects or not all(map(_is_fit, closed.consts)):
        return None
    if not any(map(is_tracer, [*closed.consts, *operands])):
        return None
    outs = bind_loss(closed, [dynamic.index(i) for i in wrt_leaves], operands)
    num_values = len(closed.out_avals)
    value, aux, flat_grads = outs[0], outs[1:num_values], outs[num_values:]
    grads = []
    for n in nums:
        count = spans[n][1] - spans[n][0]
        grads.append(jax.tree.unflatten(jax.tree.structure(args[n]), flat_grads[:count]))
        flat_grads = flat_grads[count:]
    grad = tuple(grads) if isinstance(argnums, Sequence) else grads[0]
    return (((value, refill_aux(aux)), grad) if has_aux else (value, grad),)


def bind_loss(closed: Any, wrt: Sequence[int], operands: Sequence[Any]) -> list[Any]:
    """Bind a loss as one primitive.

    Args:
        closed: Jaxpr of its value and auxiliary results.
        wrt: Positions of the operands that it is differentiated for.
        operands: What it takes.

    Returns:
        Value, auxiliary results, gradients.
    """
    own, given = consts_as_inputs(closed), [*closed.consts, *operands]
    places = tuple(len(closed.consts) + n for n in wrt)
    return loss_and_grad_p.bind(
        *given,
        loss=on_whole_arrays(own),
        own=own,
        wrt=places,
        expand=_expansion(own, places, given),
    )


def call_line(loss: Any) -> str:
    """Return the user's source line in which the loss of an equation is differentiated."""
    return source_line(loss.source_info)


def _traced_loss(
    fun: Callable[..., Any],
    has_aux: bool,
    leaves: Sequence[Any],
    tree: Any,
    dynamic: Sequence[int],
) -> tuple[Any, Callable[[Sequence[Any]], Any]]:
    """Jaxpr of value and traced auxiliary data, and what puts the latter among the rest of it."""
    static = {i: x for i, x in enumerate(leaves) if i not in set(dynamic)}
    aux_parts: list[Any] = []

    keeping = keeping_arguments(fun, _argument, IN_LOSS)

    def loss(*args: Any, **kwargs: Any) -> list[Any]:
        given = iter(jax.tree.leaves((args, kwargs)))
        filled = [static[i] if i in static else next(given) for i in range(len(leaves))]
        new_args, new_kwargs = jax.tree.unflatten(tree, filled)
        out = keeping(*new_args, **new_kwargs)
        if has_aux and not (isinstance(out, tuple) and len(out) == 2):
            raise _NotALoss
        value, aux = out if has_aux else (out, None)
        try:
            jax.typeof(value)
        except TypeError:
            raise _NotALoss from None
        aux_leaves, aux_tree = jax.tree.flatten(aux)
        traced = [i for i, x in enumerate(aux_leaves) if is_tracer(x)]
        kept = {i: x for i, x in enumerate(aux_leaves) if not is_tracer(x)}
        aux_parts[:] = [aux_tree, traced, kept]
        return [value, *(aux_leaves[i] for i in traced)]

    # Names in JAX's errors are then those of the user's function and of its arguments.
    loss.__dict__["__wrapped__"] = fun
    holes = [None if i in static else x for i, x in enumerate(leaves)]
    args, kwargs = jax.tree.unflatten(tree, holes)
    closed = jax.make_jaxpr(loss)(*args, **kwargs)
    aux_tree, traced, kept = aux_parts

    def refill(outs: Sequence[Any]) -> Any:
        found = kept | dict(zip(traced, outs, strict=True))
        return jax.tree.unflatten(aux_tree, [found[i] for i in range(len(found))])

    return closed, refill


def _argument(number: int) -> str:
    return f"argument {number}"


def _resolved(argnums: int | Sequence[int], num_args: int) -> tuple[int, ...]:
    """Numbers counted from the front; none if JAX would refuse them."""
    given = tuple(argnums) if isinstance(argnums, Sequence) else (argnums,)
    if not all(-num_args <= n < num_args for n in given):
        return ()
    found = tuple(operator.index(n) % num_args for n in given)
    return found if len(set(found)) == len(found) else ()


def _is_fit(value: Any) -> bool:
    """Return whether a value is an array, concrete or staged into the jaxpr of the step.

    Under `jax.vmap` or `jax.grad` inside the step the primitive would be taken apart at once; and
    it knows nothing of types that name axes of a mesh.
    """
    aval = jax.typeof(value)
    if not isinstance(aval, core.ShapedArray) or names_axes(aval.sharding):
        return False
    return is_staged(value) or not is_tracer(value)


def _is_differentiable(value: Any) -> bool:
    try:
        aval = jax.typeof(value)
    except TypeError:
        return False
    return isinstance(aval, core.ShapedArray) and jnp.issubdtype(aval.dtype, jnp.inexact)


# What differentiates modules, by their libraries.
_OF_MODULES = {"nnx": "mw.nnx.value_and_grad", "eqx": "mw.eqx.filter_value_and_grad"}


def _refuse_constants(fun: Callable[..., Any], value: Any, arguments: Sequence[Any]) -> None:
    """Refuse whole numbers, and functions and flags in modules.

    Raises:
        LossError: the value is one.
    """
    if _is_differentiable(value):
        return
    name, library = getattr(fun, "__name__", "the loss"), library_of(arguments)
    of_modules = "" if library is None else f"use {_OF_MODULES[library]}, or "
    try:
        aval = jax.typeof(value)
    except TypeError:
        if library is None:
            return  # JAX says what is wrong
        raise LossError(
            f"{name} is differentiated with respect to a {type(value).__name__}, but only real and "
            f"complex numbers have a gradient; {of_modules}choose the others with argnums"
        ) from None
    if isinstance(aval, core.ShapedArray) and (
        jnp.issubdtype(aval.dtype, jnp.integer) or aval.dtype == jnp.bool_
    ):
        raise LossError(
            f"{name} is differentiated with respect to {aval.str_short()}, but only real and "
            f"complex numbers have a gradient; {of_modules}keep whole numbers in another argument, "
            "or choose the others with argnums"
        )


def _specs(operands: Sequence[Any]) -> list[Any]:
    avals = [jax.typeof(x) for x in operands]
    specs = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in avals]
    return list(map(explicit, avals, specs))


def _expansion(loss: Any, wrt: tuple[int, ...], operands: Sequence[Any]) -> Callable[[], Any]:
    """Value and gradients as a jaxpr, made when it is first asked for."""
    specs = _specs(operands)  # no tracer outlives its trace here
    expanded = under_mesh(partial(_expanded, loss=loss, wrt=wrt), users_mesh())

    @cache
    def expand() -> Any:
        # Parallel code is differentiated by JAX, which knows the derivatives that are in it.
        return on_whole_arrays(jax.make_jaxpr(expanded)(*specs))

    return expand
