"""Trees of a step's arguments as keys: functions of libraries are compared by what they do.

An optimizer made anew, as `optax.adam(1e-3)` in what makes a state, holds other functions of the
same code and the same constants: one plan is for both.  A user's own function may read what has
changed since, so that there a new one is another step, as for `jax.jit`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from types import CellType, FunctionType, NoneType
from typing import Any

import numpy as np

# Code of these packages reads no globals that change.
_LIBRARIES = frozenset(("flax", "jax", "optax"))
_CONSTANTS = (bool, int, float, complex, str, bytes, NoneType)
_Pairs = set[tuple[int, int]]


class StepTree:
    """The tree of a step's arguments, equal to those that mean the same step."""

    __slots__ = ("tree",)

    def __init__(self, tree: Any) -> None:
        """Take the tree, a `PyTreeDef`."""
        self.tree = tree

    def __hash__(self) -> int:
        """Return a hash of the tree's form; JAX leaves out what is static."""
        return hash(self.tree)

    def __eq__(self, other: object) -> bool:
        """Return whether the other tree has the same form, and static parts that do the same."""
        return isinstance(other, StepTree) and _same_trees(self.tree, other.tree)


def _same_trees(one: Any, other: Any) -> bool:
    if one == other:
        return True
    if (one.num_nodes, one.num_leaves) != (other.num_nodes, other.num_leaves):
        return False
    return does_the_same(one.node_data(), other.node_data()) and all(
        map(_same_trees, one.children(), other.children())
    )


def does_the_same(one: object, other: object) -> bool:
    """Return whether static parts of two trees are equal, or equal but for functions made anew.

    False only says that it is not known.

    Args:
        one: What is static in a node.
        other: The same of another tree.
    """
    return _same(one, other, set(), in_function=False)


def _same(one: Any, other: Any, met: _Pairs, *, in_function: bool) -> bool:
    """Compare; what stands in functions is equal only if it cannot have changed since.

    Args:
        one: A constant.
        other: Another one.
        met: Pairs of functions that are compared elsewhere: one that differs is found there.
        in_function: Whether they stand in functions that were made anew.
    """
    if type(one) is not type(other):
        return False
    if isinstance(one, _CONSTANTS):
        return repr(one) == repr(other)
    if isinstance(one, FunctionType):
        in_function = True
        pair = (id(one), id(other))  # The trees keep functions alive, so that numbers stay theirs.
        if pair in met:
            return True
        met.add(pair)
    parts, others = (_parts(value, in_function=in_function) for value in (one, other))
    if parts is None or others is None:
        return _is_equal(one, other, in_function=in_function)
    return len(parts) == len(others) and all(
        _same(a, b, met, in_function=in_function) for a, b in zip(parts, others, strict=True)
    )


def _is_equal(one: object, other: object, *, in_function: bool) -> bool:
    """Compare as JAX does, but in functions only what has no parts that change."""
    if in_function and not isinstance(one, type | np.dtype):
        return False
    try:
        return (one == other) is True
    except Exception:  # a user's own comparison
        return False


def _parts(value: Any, *, in_function: bool) -> tuple[Any, ...] | None:
    """Return what a constant consists of; None for what is compared as a whole.

    Lists and dicts in a tree are compared by what they hold now, as JAX does.  In a function they
    may have held something else.
    """
    kind: Any = type(value)
    items: Any = value
    if isinstance(value, FunctionType):
        if not _is_of_library(value):
            return None
        attributes = tuple(sorted(vars(value).items()))
        defaults = value.__defaults__, tuple((value.__kwdefaults__ or {}).items())
        return id(value.__code__), *defaults, value.__closure__, attributes
    if isinstance(value, CellType):
        try:
            return (value.cell_contents,)
        except ValueError:  # nothing was assigned
            return ()
    if kind is partial:
        return value.func, value.args, tuple(value.keywords.items())
    is_of_library = _is_of_library(kind)
    is_list = kind is list and not in_function
    if kind is tuple or is_list or (isinstance(value, tuple) and is_of_library):
        return (*value,)
    if isinstance(value, Mapping) and (is_of_library or (kind is dict and not in_function)):
        return tuple(sorted(items.items(), key=lambda item: repr(item[0])))
    if not is_of_library:
        return None
    if is_dataclass(value):
        return tuple(getattr(value, field.name, None) for field in fields(value))
    return None


def _is_of_library(value: Any) -> bool:
    """Return whether a function or a class is of one of the libraries."""
    return (value.__module__ or "").partition(".")[0] in _LIBRARIES
