"""Modules that a step changes inside: it is called with copies, so what is not returned is lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

import jax
from jax.tree_util import GetAttrKey, KeyPath, keystr

from meshwise.errors import TraceError
from meshwise.trace.call import base
from meshwise.trace.libraries import library_of

_Leaves = dict[KeyPath, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """What to write where a change would be lost.

    Attributes:
        why: Why it would be.
        with_nnx: What carries changes of modules of NNX over.
        otherwise: What does so for all objects.
    """

    why: str
    with_nnx: str
    otherwise: str


IN_STEP = Remedy(
    why="as under jax.jit the object is a copy, so the change would be lost and nothing would "
    "train",
    with_nnx="use mw.nnx.parallelize in place of mw.parallelize, which carries changes over as "
    "nnx.jit does",
    otherwise="return the changed object, as `return model, loss`, and pass it to the next call",
)
IN_LOSS = Remedy(
    why="as under jax.grad the object is a copy, so the change, as of statistics or of a random "
    "stream, would be lost",
    with_nnx="use mw.nnx.value_and_grad in place of mw.value_and_grad, in a step made by "
    "mw.nnx.parallelize",
    otherwise="return the changed values as auxiliary data, with has_aux=True",
)


def keeping_arguments(
    fun: Callable[..., Any], label: Callable[[int], str], remedy: Remedy = IN_STEP
) -> Callable[..., Any]:
    """Return a function that refuses, when it is traced, to lose what it changes in its arguments.

    Args:
        fun: A step, or a loss.
        label: What messages call a positional argument.
        remedy: What to write.

    Returns:
        A function that raises `TraceError` if an attribute of an object among the arguments has
        another value afterwards, which is none of the results.
    """

    @wraps(fun)
    def step(*args: Any, **kwargs: Any) -> Any:
        before = _attributes(args, kwargs)
        # What an object makes anew each time that it is flattened was not changed by the step.
        again = _attributes(args, kwargs)
        out = fun(*args, **kwargs)
        returned = set(map(id, jax.tree.leaves(out)))
        for path, leaf in _attributes(args, kwargs).items():
            was = before.get(path)
            if was is None or was is leaf or again[path] is not was or id(leaf) in returned:
                continue
            part, argument, *rest = path
            place = label(argument.idx) if part.idx == 0 else str(argument.key)
            given: Any = (args, kwargs)[part.idx][argument.idx if part.idx == 0 else argument.key]
            raise TraceError(_refusal(base(fun)[1], place + keystr(tuple(rest)), given, remedy))
        return out

    return step


def _refusal(name: str, place: str, argument: Any, remedy: Remedy) -> str:
    ways = [remedy.with_nnx] if library_of(argument) == "nnx" else []
    return f"{name} changes {place} in place and does not return it; {remedy.why}: " + ", or ".join(
        [*ways, remedy.otherwise]
    )


def _attributes(args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Leaves:
    """Return the leaves that are attributes of objects; dicts and lists are changed at will."""
    found = jax.tree_util.tree_flatten_with_path((tuple(args), dict(kwargs)))[0]
    return {path: leaf for path, leaf in found if any(isinstance(key, GetAttrKey) for key in path)}
