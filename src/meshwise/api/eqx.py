"""Equinox: steps that take and return modules, of which functions and flags are static.

`mw.eqx.parallelize` is to `mw.parallelize` what `eqx.filter_jit` is to `jax.jit`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial, wraps
from typing import Any

import equinox as eqx
import jax

from meshwise.api.arguments import DEFAULT_BATCH_ARGNUMS, Binding, Call
from meshwise.api.object_step import ObjectStep, parallelized
from meshwise.api.static_leaves import ARRAYS, with_static_leaves, without_static_leaves
from meshwise.jax_compat.jaxprs import PyTree
from meshwise.trace.libraries import library_of
from meshwise.trace.loss import value_and_grad, without_value


class EqxStep(ObjectStep):
    """A step of Equinox modules; made by `mw.eqx.parallelize`."""

    def _taken_apart(
        self, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]
    ) -> tuple[Binding, Call]:
        if self._options.batch_argnums == DEFAULT_BATCH_ARGNUMS:
            given = self._by_number(args, kwargs)
            # Batch data may be a module itself; what only holds modules is optimizer state.
            if 1 in given and not isinstance(given[1], eqx.Module) and not _is_batch(given[1]):
                batch = self._dynamic(n for n in sorted(given) if _is_batch(given[n]))
                self._options = replace(self._options, batch_argnums=batch)
        return super()._taken_apart(args, kwargs)

    def _arrays(self, value: PyTree) -> PyTree:
        return with_static_leaves(value, self._options.name)

    def _objects(self, arrays: PyTree) -> PyTree:
        return without_static_leaves(arrays)


def _is_batch(value: PyTree) -> bool:
    """Whether an argument may be batch data: it has arrays, and no modules."""
    leaves = jax.tree.leaves(value)
    return library_of(value) is None and any(isinstance(leaf, ARRAYS) for leaf in leaves)


def parallelize(fun: Callable[..., PyTree] | None = None, **options: Any) -> Any:
    """Parallelise a step that takes and returns Equinox modules, as `eqx.filter_jit` compiles one.

    Args:
        fun: The step, as `step(model, opt_state, batch)`, which returns the new model.  Arrays of
            JAX and NumPy are its data; every other leaf is a constant, for whose values the step
            is planned anew.
        **options: As in `mw.parallelize`.  By default batch data is argument 1, or if that is the
            state of an optimizer (it holds modules, or no arrays), every argument with arrays and
            without modules.

    Returns:
        An `EqxStep`, a `ParallelStep` that takes modules; decorator if `fun` is left out.

    Raises:
        TraceError: a leaf is no array and cannot be hashed.
        TraceError, PlanError, ClusterError: as `mw.parallelize`.
    """
    if fun is None:
        return partial(parallelize, **options)
    return parallelized(EqxStep, fun, options)


def filter_value_and_grad(fun: Callable[..., Any], *, has_aux: bool = False) -> Callable[..., Any]:
    """Differentiate as `eqx.filter_value_and_grad` does, marked for pipeline stages.

    Args:
        fun: The loss of `(model, *args)`; it is differentiated for the model's floating arrays.
        has_aux: Whether `fun` returns auxiliary data.

    Returns:
        A function with the arguments of `fun` that returns `(value, gradients)`, which have None
        in place of leaves that have no gradient.

    Raises:
        LossError: the loss is not a real scalar.
    """

    @wraps(fun)
    def wrapped(model: Any, *args: Any, **kwargs: Any) -> Any:
        params, rest = eqx.partition(model, eqx.is_inexact_array)

        def loss(params: Any) -> Any:
            return fun(eqx.combine(params, rest), *args, **kwargs)

        return value_and_grad(loss, has_aux=has_aux)(params)

    return wrapped


def filter_grad(fun: Callable[..., Any], *, has_aux: bool = False) -> Callable[..., Any]:
    """Differentiate as `eqx.filter_grad` does, marked for pipeline stages.

    Args:
        fun: The loss, as for `filter_value_and_grad`.
        has_aux: Whether `fun` returns auxiliary data.

    Returns:
        A function with the arguments of `fun` that returns the gradients.

    Raises:
        LossError: the loss is not a real scalar.
    """
    return without_value(filter_value_and_grad(fun, has_aux=has_aux), has_aux=has_aux)
