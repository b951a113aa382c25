"""`value_and_grad` and `grad`: drop-in for JAX's, kept as one primitive while a step is traced.

The primitive holds the loss jaxpr, so that a pipeline can cut the forward pass and differentiate
each piece.  On one mesh it is expanded where it stands.

Source: DESIGN decision 3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any

import jax
from jax import core
from jax.interpreters import ad, batching, mlir

from meshwise.errors import TraceError
from meshwise.jax_compat import Primitive, is_tracer, jaxpr_as_fun

loss_and_grad_p = Primitive("loss_and_grad")
loss_and_grad_p.multiple_results = True


def _expanded(*args: Any, loss: Any, wrt: tuple[int, ...]) -> list[Any]:
    """Value, auxiliary results, gradients with respect to the inputs `wrt`, flat."""

    def scalar(*args: Any) -> tuple[Any, list[Any]]:
        value, *aux = jaxpr_as_fun(loss)(*args)
        return value, aux

    (value, aux), grads = jax.value_and_grad(scalar, argnums=wrt, has_aux=True)(*args)
    return [value, *aux, *grads]


def _flat(*args: Any, loss: Any, wrt: tuple[int, ...], expand: Any = None) -> list[Any]:
    del expand
    return _expanded(*args, loss=loss, wrt=wrt)


def _abstract(*avals: Any, loss: Any, wrt: tuple[int, ...], expand: Any) -> list[Any]:
    del expand
    outs = list(loss.out_avals)
    return outs + [avals[i].update(weak_type=False) for i in wrt]


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
    tangents = [ad.instantiate_zeros(t) for t in tangents]
    return jax.jvp(lambda *xs: _flat(*xs, **params), tuple(primals), tuple(tangents))


def _batch(args: Sequence[Any], dims: Sequence[Any], **params: Any) -> Any:
    axes = tuple(dims)  # None is not mapped
    outs = jax.vmap(lambda *xs: _flat(*xs, **params), in_axes=axes)(*args)
    return outs, [0] * len(outs)


loss_and_grad_p.def_impl(_flat)
loss_and_grad_p.def_abstract_eval(_abstract)
ad.primitive_jvps[loss_and_grad_p] = _jvp
batching.primitive_batchers[loss_and_grad_p] = _batch
mlir.register_lowering(loss_and_grad_p, mlir.lower_fun(_flat, multiple_results=True))


def value_and_grad(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    **kwargs: Any,
) -> Callable[..., Any]:
    """Like `jax.value_and_grad`; under `parallelize` it marks where the loss is.

    Args:
        fun: The loss; returns a real scalar, or `(scalar, aux)` with `has_aux`.
        argnums: Positional arguments to differentiate.
        has_aux: Whether `fun` returns auxiliary data.
        **kwargs: As for `jax.value_and_grad` (`holomorphic`, `allow_int`): these take the plain
            path.

    Returns:
        A function with the arguments of `fun` that returns `(value, gradients)`.

    Raises:
        TraceError: the loss is not a real scalar.
    """
    plain = jax.value_and_grad(fun, argnums=argnums, has_aux=has_aux, **kwargs)

    @wraps(fun)
    def wrapped(*args: Any, **fun_kwargs: Any) -> Any:
        if kwargs:
            return plain(*args, **fun_kwargs)
        nums = (argnums,) if isinstance(argnums, int) else tuple(argnums)
        nums = tuple(n % len(args) for n in nums)
        flat, tree = jax.tree.flatten((args, fun_kwargs))
        spans = _leaf_spans(args)
        wrt = tuple(i for n in nums for i in range(*spans[n]))
        out_tree: list[Any] = []

        def loss(*leaves: Any) -> list[Any]:
            new_args, new_kwargs = jax.tree.unflatten(tree, leaves)
            out = fun(*new_args, **new_kwargs)
            value, aux = out if has_aux else (out, None)
            aux_leaves, aux_tree = jax.tree.flatten(aux)
            out_tree[:] = [aux_tree]
            return [value, *aux_leaves]

        closed = jax.make_jaxpr(loss)(*flat)
        _check_scalar(closed.out_avals[0], fun)
        if not any(is_tracer(x) for x in (*flat, *closed.consts)):
            return plain(*args, **fun_kwargs)
        consts = closed.consts
        opened = _with_consts_as_inputs(closed)
        shifted = tuple(len(consts) + i for i in wrt)
        operands = [*consts, *flat]
        avals = [jax.typeof(x) for x in operands]
        outs = loss_and_grad_p.bind(
            *operands,
            loss=opened,
            wrt=shifted,
            expand=partial(_expansion, opened, shifted, tuple(avals)),
        )
        num_aux = len(closed.out_avals) - 1
        value, aux, grads = outs[0], outs[1 : 1 + num_aux], outs[1 + num_aux :]
        grad_trees = []
        for n in nums:
            start, stop = spans[n]
            leaves, grads = grads[: stop - start], grads[stop - start :]
            grad_trees.append(jax.tree.unflatten(jax.tree.structure(args[n]), leaves))
        grad = grad_trees[0] if isinstance(argnums, int) else tuple(grad_trees)
        if has_aux:
            return (value, jax.tree.unflatten(out_tree[0], aux)), grad
        return value, grad

    return wrapped


def grad(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    **kwargs: Any,
) -> Callable[..., Any]:
    """Like `jax.grad`; see `value_and_grad`."""
    both = value_and_grad(fun, argnums, has_aux, **kwargs)

    @wraps(fun)
    def wrapped(*args: Any, **fun_kwargs: Any) -> Any:
        value, grads = both(*args, **fun_kwargs)
        return (grads, value[1]) if has_aux else grads

    return wrapped


def _leaf_spans(args: Sequence[Any]) -> list[tuple[int, int]]:
    spans, start = [], 0
    for arg in args:
        stop = start + len(jax.tree.leaves(arg))
        spans.append((start, stop))
        start = stop
    return spans


def _with_consts_as_inputs(closed: Any) -> Any:
    """The closed jaxpr with its captured values as leading arguments."""
    count = len(closed.consts)
    avals = [jax.typeof(c) for c in closed.consts] + list(closed.in_avals)

    def opened(*args: Any) -> list[Any]:
        return core.eval_jaxpr(closed.jaxpr, args[:count], *args[count:])

    if not count:
        return closed
    return jax.make_jaxpr(opened)(*(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals))


def _expansion(loss: Any, wrt: tuple[int, ...], avals: tuple[Any, ...]) -> Any:
    specs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals]
    return jax.make_jaxpr(partial(_expanded, loss=loss, wrt=wrt))(*specs)


def _check_scalar(aval: Any, fun: Callable[..., Any]) -> None:
    if aval.shape != () or not jax.numpy.issubdtype(aval.dtype, jax.numpy.floating):
        name = getattr(fun, "__name__", "the loss")
        raise TraceError(
            f"{name} returns {aval.str_short()}, but a loss must be a real scalar; reduce it, "
            "for example with jnp.mean"
        )
