"""Structures of pytrees that the driver and the hosts know by the same numbers.

Parts of a structure that are no arrays, as the functions of an optimizer, often equal only
themselves. A number stands for the structure on either side, so that a state which the driver
passes back is of the very structure with which the hosts made it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax

from meshwise.jax_compat.jaxprs import PyTree

# What `jax.tree.structure` returns.
Structure: TypeAlias = Any


class Trees:
    """Structures by number; parts of a known structure are known too."""

    def __init__(self) -> None:
        self._trees: list[Structure] = []
        self._numbers: dict[Structure, int] = {}

    def __len__(self) -> int:
        return len(self._trees)

    def __getitem__(self, number: int) -> Structure:
        return self._trees[number]

    def number(self, tree: Structure) -> int | None:
        """Return the number of a structure; None if it is not known.

        Args:
            tree: The structure.
        """
        return self._numbers.get(tree)

    def learn(self, tree: Structure) -> int:
        """Give a structure and its parts the next numbers, and return its own.

        Args:
            tree: The structure.
        """
        first = len(self)
        for number, part in enumerate(_parts(tree), first):
            self._trees.append(part)
            self._numbers.setdefault(part, number)
        return first

    def forget(self, first: int) -> None:
        """Forget the structures from a number on, as after a call that failed.

        Args:
            first: The number.
        """
        for number in reversed(range(first, len(self))):
            part = self._trees.pop()
            if self._numbers[part] == number:
                del self._numbers[part]


@dataclass(frozen=True, slots=True)
class Skeleton:
    """A structure as it is sent.

    Attributes:
        tree: A pytree of the structure, without arrays.
    """

    tree: PyTree

    @classmethod
    def of(cls, structure: Structure) -> Skeleton:
        """Return the skeleton of a structure.

        Args:
            structure: The structure.
        """
        return cls(jax.tree.unflatten(structure, range(structure.num_leaves)))

    @property
    def structure(self) -> Structure:
        """The structure."""
        return jax.tree.structure(self.tree)


def _parts(tree: Structure) -> Iterator[Structure]:
    yield tree
    for part in tree.children():
        yield from _parts(part)
