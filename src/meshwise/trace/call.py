"""Calls a user's step while it is traced, and says what is wrong with the call or its results."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import jax
from jax.sharding import AbstractMesh

from meshwise.errors import CallError, TraceError


def named(fun: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a step so that JAX traces it anew and names it and its parameters in errors."""
    below, name = base(fun)

    def step(*args: Any, **kwargs: Any) -> Any:
        out = call(fun, args, kwargs)
        if isinstance(out, Iterator):  # JAX takes one for a leaf, with a warning
            _check_result(name, (), out)
        for path, leaf in jax.tree_util.tree_flatten_with_path(out)[0]:
            _check_result(name, path, leaf)
        return out

    step.__dict__["__wrapped__"] = below
    with suppress(TypeError, ValueError):  # Python cannot tell: then JAX numbers the arguments
        step.__dict__["__signature__"] = inspect.signature(fun)
    return step


def under_mesh(fun: Callable[..., Any], mesh: AbstractMesh) -> Callable[..., Any]:
    """Return a function that runs under a mesh that the user has set, wherever it is called.

    Args:
        fun: The function.
        mesh: The mesh; an empty one for none.
    """
    if mesh.empty:
        return fun

    def under(*args: Any, **kwargs: Any) -> Any:
        with jax.sharding.use_abstract_mesh(mesh):
            return call(fun, args, kwargs)

    under.__dict__["__wrapped__"] = base(fun)[0]
    with suppress(TypeError, ValueError):
        under.__dict__["__signature__"] = inspect.signature(fun)
    return under


def base(fun: Callable[..., Any]) -> tuple[Callable[..., Any], str]:
    """Return the function below partials, and its name."""
    while isinstance(fun, partial):
        fun = fun.func
    fun = getattr(fun, "__wrapped__", fun)
    return fun, getattr(fun, "__name__", type(fun).__name__)


def call(fun: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call a step.

    Args:
        fun: The step.
        args: Its positional arguments.
        kwargs: Its keyword arguments.

    Returns:
        What it returns.

    Raises:
        CallError: it does not take such arguments.
    """
    try:
        return fun(*args, **kwargs)
    except TypeError as error:
        inside = error.__traceback__.tb_next if error.__traceback__ is not None else None
        if inside is not None or isinstance(error, TraceError):
            raise
        takes = "(...)"
        with suppress(TypeError, ValueError):  # Python cannot tell the parameters
            takes = str(inspect.signature(fun))
        raise CallError(f"{error}; call it as {base(fun)[1]}{takes}") from None


def _check_result(name: str, path: Any, leaf: Any) -> None:
    try:
        jax.typeof(leaf)
    except TypeError:
        where = jax.tree_util.keystr(path)
        raise TraceError(
            f"{name} returns {leaf!r:.60} ({type(leaf).__name__}) at result{where}, which is not "
            "an array; return arrays only, in any tree"
        ) from None


def leaf_spans(args: Sequence[object]) -> list[tuple[int, int]]:
    """Find the leaves of each argument among the leaves of all.

    Args:
        args: Pytrees.

    Returns:
        For each of them the position of its first leaf, and of the one behind its last.
    """
    ends = list(itertools.accumulate((len(jax.tree.leaves(arg)) for arg in args), initial=0))
    return list(itertools.pairwise(ends))
