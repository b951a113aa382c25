"""Trees of a step's arguments as keys: what is static in them is compared by what it does.

An optimizer made anew, as `optax.adam(1e-3)` in what makes a state, holds other functions of the
same code and the same constants: one plan is for both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any

_Pairs = frozenset[tuple[int, int]]


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


def does_the_same(one: object, other: object, known: _Pairs = frozenset()) -> bool:
    """Return whether two constants are equal, functions by their code and what it refers to.

    False only says that it is not known.

    Args:
        one: A constant of a step.
        other: Another one.
        known: Pairs, by identity, that are being compared: a function may refer to itself.
    """
    pair = (id(one), id(other))
    if one is other or pair in known:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        other = {key: other[key] for key in one if key in other} | dict(other)
    parts, others = _parts(one), _parts(other)
    if parts is None or others is None:
        return (one == other) is True
    return len(parts) == len(others) and all(
        does_the_same(a, b, known | {pair}) for a, b in zip(parts, others, strict=True)
    )


def _parts(value: Any) -> tuple[Any, ...] | None:
    """Return what a constant consists of; None for what is compared as a whole."""
    if isinstance(value, FunctionType):
        # Names of globals mean the same in one module only.
        module = id(value.__globals__)
        names = value.__code__, module, value.__defaults__, value.__kwdefaults__
        return *names, value.__closure__, vars(value)
    if isinstance(value, CellType):
        try:
            return (value.cell_contents,)
        except ValueError:  # nothing was assigned
            return ()
    if isinstance(value, partial):
        return value.func, value.args, value.keywords
    if isinstance(value, Mapping):
        return *value.keys(), *value.values()
    if isinstance(value, tuple | list):
        return tuple(value)
    if isinstance(value, MethodType):
        return value.__func__, value.__self__
    has_fields = is_dataclass(value) and not isinstance(value, type)
    if has_fields and type(value).__eq__ is not object.__eq__:
        return tuple(getattr(value, field.name, None) for field in fields(value))
    return None
