"""Pytrees whose nodes have indices beside names, or some indices only, for Orbax.

Flax's `nnx.List` has indices, and its own attributes beside them.  Orbax (0.12) saves such nodes,
but cannot sort their keys when it restores; of indices it expects each from 0 on.  In the trees
here such nodes are dicts with names alone.  Files stay as they are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Any

import jax
from jax.tree_util import DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey

from meshwise.jax_compat.jaxprs import PyTree


def as_plain_tree(tree: PyTree) -> PyTree:
    """Return a tree of dicts and lists with the same leaves.

    Args:
        tree: Any pytree; nodes without children stay as they are.

    Returns:
        Lists where the keys are all indices from 0 on, dicts by name elsewhere.
    """
    children = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: x is not tree)[0]
    if not children or not children[0][0]:
        return tree
    plain = {path[0]: as_plain_tree(child) for path, child in children}
    named = {_name(key): child for key, child in plain.items()}
    is_indexed = all(isinstance(key, SequenceKey | FlattenedIndexKey) for key in plain)
    if is_indexed and _are_all_indices(named):
        return [named[str(n)] for n in range(len(named))]
    return named


def in_structure_of(tree: PyTree, plain: PyTree) -> PyTree:
    """Return the leaves of a plain tree in the structure of the tree that it was made of.

    Args:
        tree: As it was given to `as_plain_tree`.
        plain: A tree of the structure that `as_plain_tree` returned.
    """

    def leaf(path: Iterable[Any], _: object) -> Any:
        found = plain
        for key in path:
            name = _name(key)
            found = found[int(name) if isinstance(found, list) else name]
        return found

    return jax.tree_util.tree_map_with_path(leaf, tree)


def make_keys_plain(entries: Iterable[Any]) -> None:
    """Let Orbax's description of a checkpoint have no indices beside names.

    Args:
        entries: What Orbax says of each leaf.  Indices beside names, and those of which some are
            not there, become names.
    """
    siblings: dict[tuple[str, ...], list[Any]] = defaultdict(list)
    for entry in entries:
        keys = entry.key_metadata.nested_key_metadata_entries
        names = tuple(key.nested_key_name for key in keys)
        for n, key in enumerate(keys):
            siblings[names[:n]].append(key)
    for keys in siblings.values():
        kinds = {key.key_type for key in keys}
        are_indices = kinds == {type(keys[0].key_type).SEQUENCE}
        if len(kinds) > 1 or (
            are_indices and not _are_all_indices({key.nested_key_name for key in keys})
        ):
            for key in keys:
                key.key_type = type(key.key_type).DICT


def _are_all_indices(names: Collection[str]) -> bool:
    """Return whether names are the numbers from 0 on, in any order."""
    return set(names) == {str(n) for n in range(len(names))}


def _name(key: Any) -> str:
    """Return a key as Orbax writes it."""
    match key:
        case SequenceKey():
            return str(key.idx)
        case GetAttrKey():
            return key.name
        case DictKey() | FlattenedIndexKey():
            return str(key.key)
    return str(key)
