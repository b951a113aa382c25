"""Trees of which some leaves are no arrays, as modules of Equinox: such leaves are static."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from meshwise.errors import TraceError
from meshwise.jax_compat.jaxprs import PyTree
from meshwise.runtime.host_rows import HostRows

ARRAYS = (jax.Array, jax.ShapeDtypeStruct, np.ndarray, np.generic, HostRows)


@jax.tree_util.register_static
@dataclass(frozen=True)
class Static:
    """A leaf that is no array: a constant of the step."""

    value: Any


def with_static_leaves(tree: PyTree, name: str) -> PyTree:
    """Return a tree with every leaf that is no array taken for a constant.

    Args:
        tree: An argument or a result of a step.
        name: Of the step.

    Raises:
        TraceError: such a leaf cannot be hashed.
    """

    def taken(path: Any, leaf: Any) -> Any:
        if isinstance(leaf, ARRAYS):
            return leaf
        try:
            hash(leaf)
        except TypeError:
            raise TraceError(
                f"{name} takes or returns a leaf {jax.tree_util.keystr(path)} of type "
                f"{type(leaf).__name__}, which is no array and cannot be hashed ({leaf!r:.80}); "
                "make it an array, or a static field of its module"
            ) from None
        return Static(leaf)

    return jax.tree_util.tree_map_with_path(taken, tree)


def without_static_leaves(tree: PyTree) -> PyTree:
    """Return a tree as it was before `with_static_leaves`."""

    def is_static(node: Any) -> bool:
        return isinstance(node, Static)

    return jax.tree.map(
        lambda leaf: leaf.value if is_static(leaf) else leaf, tree, is_leaf=is_static
    )
