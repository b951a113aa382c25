"""Which library's module an argument is; a library that the user does not import is not either."""

from __future__ import annotations

from typing import Literal

import jax

Library = Literal["nnx", "eqx"]
# Where the base classes of modules are defined: package, then name of the class.
_BASES: dict[tuple[str, str], Library] = {
    ("flax.nnx", "Pytree"): "nnx",
    ("flax.nnx", "Variable"): "nnx",
    ("equinox", "Module"): "eqx",
}


def library_of(tree: object) -> Library | None:
    """Return the library of the first module in a tree; None if there is none.

    Args:
        tree: A pytree, in which modules may be nodes.
    """
    nodes = jax.tree.leaves(tree, is_leaf=lambda node: _known(node) is not None)
    for node in nodes:
        if (library := _known(node)) is not None:
            return library
    return None


def _known(node: object) -> Library | None:
    for kind in type(node).__mro__:
        for (package, name), library in _BASES.items():
            if kind.__name__ == name and kind.__module__.startswith(f"{package}."):
                return library
    return None
