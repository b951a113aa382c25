"""Flax NNX: steps that change their modules, and gradients of modules.

`mw.nnx.parallelize` is to `mw.parallelize` what `nnx.jit` is to `jax.jit`: after the call the
modules and optimizers that were passed hold what the step left in them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial, wraps
from typing import Any

import jax
from flax import nnx

from meshwise.api.arguments import DEFAULT_BATCH_ARGNUMS, Binding, Call
from meshwise.api.object_step import ObjectStep, parallelized
from meshwise.errors import TraceError
from meshwise.jax_compat.jaxprs import PyTree
from meshwise.trace.libraries import library_of
from meshwise.trace.loss import value_and_grad as marked_value_and_grad
from meshwise.trace.loss import without_value


@jax.tree_util.register_pytree_with_keys_class
class ModuleArrays:
    """The arrays of an argument that holds modules; all else of it is static."""

    def __init__(self, graph: Any, arrays: dict[Any, Any]) -> None:
        """Args: the static half as `nnx.split` gives it, the arrays by attribute."""
        self.graph = graph
        self.arrays = arrays

    def tree_flatten_with_keys(self) -> tuple[list[tuple[Any, Any]], tuple[Any, tuple[Any, ...]]]:
        """Return the arrays with their names, and what is static."""
        named = [(jax.tree_util.DictKey(name), value) for name, value in self.arrays.items()]
        return named, (self.graph, tuple(self.arrays))

    @classmethod
    def tree_unflatten(cls, static: tuple[Any, tuple[Any, ...]], arrays: Any) -> ModuleArrays:
        """Return it as it was flattened."""
        graph, names = static
        return cls(graph, dict(zip(names, arrays, strict=True)))


class NnxStep(ObjectStep):
    """A step of NNX modules; made by `mw.nnx.parallelize`."""

    def _taken_apart(
        self, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]
    ) -> tuple[Binding, Call]:
        given = self._by_number(args, kwargs)
        batch = self._options.batch_argnums
        wrong = next((n for n in batch if _has_modules(given.get(n))), None)
        if wrong is not None:
            others = self._dynamic(n for n in sorted(given) if not _has_modules(given[n]))
            if batch != DEFAULT_BATCH_ARGNUMS:
                raise TraceError(
                    f"batch_argnums={batch} of {self._options.name} names argument {wrong}, which "
                    f"holds an NNX module and is no batch data; say batch_argnums={others}"
                )
            self._options = replace(self._options, batch_argnums=others)
        binding, call = super()._taken_apart(args, kwargs)
        arrays = [
            id(leaf)
            for value in (*call.args, *call.kwargs.values())
            if isinstance(value, ModuleArrays)
            for leaf in jax.tree.leaves(value)
        ]
        if len(set(arrays)) < len(arrays):
            self._refuse_sharing(self._from_caller(args, kwargs))
        return binding, call

    def _several(self, made: PyTree) -> PyTree:
        if isinstance(made, tuple | list):
            self._refuse_sharing(tuple(made))
        return super()._several(made)

    def _refuse_sharing(self, given: tuple[PyTree, ...]) -> None:
        seen: dict[int, int] = {}
        for number, value in enumerate(given):
            for path, node in nnx.iter_graph(value) if _has_modules(value) else ():
                if isinstance(node, nnx.Variable) and seen.setdefault(id(node), number) != number:
                    raise TraceError(
                        f"arguments {seen[id(node)]} and {number} of {self._options.name} share a "
                        f"variable ({'.'.join(map(str, path))}), so two copies of it would train; "
                        "pass them as one argument, as step((model, other), batch)"
                    )

    def _arrays(self, value: PyTree) -> PyTree:
        if isinstance(value, ModuleArrays) or not _has_modules(value):
            return value
        if isinstance(value, nnx.Variable):
            raise TraceError(
                f"{self._options.name} takes or returns a single {type(value).__name__} of NNX; "
                "put it into a module, or pass its array, as variable[...]"
            )
        graph, state = nnx.split(value)
        return ModuleArrays(graph, dict(state.raw_mapping))

    def _objects(self, arrays: PyTree) -> PyTree:
        if not isinstance(arrays, ModuleArrays):
            return arrays
        return nnx.merge(arrays.graph, nnx.State(arrays.arrays))

    def _results(self, taken: tuple[PyTree, ...], given: tuple[PyTree, ...], out: PyTree) -> PyTree:
        after = [self._arrays(value) for value in given]
        changed = [a for a in after if isinstance(a, ModuleArrays)]
        before = [a for a in taken if isinstance(a, ModuleArrays)]
        if [a.graph for a in changed] != [a.graph for a in before]:
            raise TraceError(
                f"{self._options.name} adds or removes variables of a module, or changes what is "
                "static in it, as model.train() and sow do; only values may change in a step: do "
                "the rest before the call, and take what sow added out with nnx.pop"
            )
        return (*changed, self._arrays(out))

    def _given_back(self, given: tuple[PyTree, ...], out: PyTree) -> PyTree:
        *after, result = out
        objects = [value for value in given if _has_modules(value)]
        for before, arrays in zip(objects, after, strict=True):
            nnx.update(before, nnx.State(arrays.arrays))
        return self._objects(result)


def _has_modules(value: PyTree) -> bool:
    return library_of(value) == "nnx"


def parallelize(fun: Callable[..., PyTree] | None = None, **options: Any) -> Any:
    """Parallelise a step that changes NNX modules, as `nnx.jit` compiles one.

    Args:
        fun: The step, as `step(model, optimizer, batch)`; what it changes in modules, optimizers,
            metrics and random streams is there after the call, so `return loss` is enough.
        **options: As in `mw.parallelize`.  By default batch data is argument 1, or if that holds a
            module, every argument that holds none.

    Returns:
        An `NnxStep`, a `ParallelStep` that takes modules; decorator if `fun` is left out.

    Raises:
        TraceError: an argument of batch data holds a module; two arguments share a variable; the
            step adds or removes variables, or changes what is static.
        TraceError, PlanError, ClusterError: as `mw.parallelize`.
    """
    if fun is None:
        return partial(parallelize, **options)
    return parallelized(NnxStep, fun, options)


def value_and_grad(
    fun: Callable[..., Any], *, argnums: int | nnx.DiffState = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Differentiate a loss of a module as `nnx.value_and_grad` does, marked for pipeline stages.

    Args:
        fun: The loss; returns a scalar, or `(scalar, aux)` with `has_aux`.  What it changes in the
            module, as statistics and random streams, stays changed.
        argnums: Which positional argument is differentiated: of a module its `nnx.Param`s, or what
            an `nnx.DiffState` says.
        has_aux: Whether `fun` returns auxiliary data.

    Returns:
        A function with the arguments of `fun` that returns `(value, gradients)`; the gradients are
        an `nnx.State`, as `optimizer.update(model, grads)` takes.

    Raises:
        LossError: the loss is not a real scalar.
    """
    is_state = isinstance(argnums, nnx.DiffState)
    number, wrt = (argnums.argnum, argnums.filter) if is_state else (argnums, nnx.Param)

    @wraps(fun)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        module = args[number]
        if not _has_modules(module):
            return marked_value_and_grad(fun, number, has_aux)(*args, **kwargs)
        graph, params, rest = nnx.split(module, wrt, ...)
        was = jax.tree.leaves(rest)

        def loss(params: Any) -> tuple[Any, tuple[Any, list[Any]]]:
            inside = nnx.merge(graph, params, rest, copy=True)
            out = fun(*args[:number], inside, *args[number:][1:], **kwargs)
            value, aux = out if has_aux else (out, None)
            now = jax.tree.leaves(nnx.split(inside, wrt, ...)[2])
            changed = [None if a is b else b for a, b in zip(was, now, strict=True)]
            return value, (aux, changed)

        (value, (aux, changed)), grads = marked_value_and_grad(loss, has_aux=True)(params)
        leaves = [a if b is None else b for a, b in zip(was, changed, strict=True)]
        nnx.update(module, jax.tree.unflatten(jax.tree.structure(rest), leaves))
        return ((value, aux) if has_aux else value), grads

    return wrapped


def grad(
    fun: Callable[..., Any], *, argnums: int | nnx.DiffState = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Differentiate a loss of a module as `nnx.grad` does, marked for pipeline stages.

    Args:
        fun: The loss, as for `value_and_grad`.
        argnums: As for `value_and_grad`.
        has_aux: Whether `fun` returns auxiliary data.

    Returns:
        A function with the arguments of `fun` that returns the gradients.

    Raises:
        LossError: the loss is not a real scalar.
    """
    return without_value(value_and_grad(fun, argnums=argnums, has_aux=has_aux), has_aux=has_aux)
