"""Sources of examples: one for whole examples, or one for each part of an example."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import numpy as np

from meshwise.errors import DataError


class ExampleSource(Protocol):
    """What gives an example by its number, as `grain.sources.RandomAccessDataSource` does."""

    def __len__(self) -> int:
        """Return the number of examples."""
        ...

    def __getitem__(self, index: int, /) -> Any:
        """Return an example; several threads ask at a time."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A leaf of the batch.

    Attributes:
        name: What messages call it.
        shape: The shape of the whole batch's leaf.
        dtype: Its dtype.
        dim: The batch dim.
    """

    name: str
    shape: tuple[int, ...]
    dtype: Any
    dim: int

    @property
    def example_shape(self) -> tuple[int, ...]:
        """The shape of one row."""
        return (*self.shape[: self.dim], *self.shape[self.dim + 1 :])


@dataclass(frozen=True, slots=True, kw_only=True)
class PartSource:
    """A source of a part of each example.

    Attributes:
        source: The source.
        tree: The tree of what it gives.
        leaves: The numbers of these leaves in the batch.
    """

    source: ExampleSource
    tree: Any
    leaves: tuple[int, ...]


class Sources:
    """The sources of all leaves of a batch."""

    def __init__(self, source: Any, batch: Any, leaves: Sequence[Leaf]) -> None:
        """Find the source of each leaf.

        Args:
            source: A source, or mappings and tuples of sources as far as the batch has them.
            batch: The tree of the batch, whose leaves are numbers.
            leaves: The leaves of the batch.

        Raises:
            DataError: the sources do not fit the batch, or have different lengths.
        """
        self._leaves = leaves
        self._parts: list[PartSource] = []

        def add(part: ExampleSource, below: Any) -> None:
            numbers, tree = jax.tree.flatten(below)
            self._parts.append(PartSource(source=part, tree=tree, leaves=tuple(numbers)))

        try:
            jax.tree.map(add, source, batch, is_leaf=_is_source)
            lengths = [len(part.source) for part in self._parts]
        except (TypeError, ValueError) as error:
            raise DataError(
                "the source does not fit the batch, which has the tree "
                f"{jax.tree.structure(batch)} ({str(error).splitlines()[0]}); pass one object "
                "with __len__ and __getitem__ that gives whole examples, or one for each leaf of "
                "the batch"
            ) from error
        if len(set(lengths)) != 1:
            told = (
                f"{self._leaves[part.leaves[0]].name} has {length}"
                for part, length in zip(self._parts, lengths, strict=True)
                if part.leaves
            )
            raise DataError(
                f"the sources have different numbers of examples: {', '.join(told)}; each must "
                "give its part of the same examples"
            )
        self.num_examples = lengths[0]

    def read(self, example: int, wanted: Collection[int]) -> dict[int, np.ndarray[Any, Any]]:
        """Read leaves of an example; a source is asked once, and only for what is wanted of it.

        Args:
            example: The number of the example.
            wanted: The numbers of the leaves.

        Raises:
            DataError: an example has another tree, or a leaf another shape or dtype.
        """
        found: dict[int, np.ndarray[Any, Any]] = {}
        for part in self._parts:
            if any(leaf in wanted for leaf in part.leaves):
                given, tree = jax.tree.flatten(part.source[example])
                if tree != part.tree:
                    raise DataError(
                        f"example {example} of the source has the tree {tree}, a row of the batch "
                        f"has {part.tree}; give examples of the batch's tree"
                    )
                for leaf, value in zip(part.leaves, given, strict=True):
                    if leaf in wanted:
                        found[leaf] = _checked(self._leaves[leaf], example, value)
        return found


def _is_source(value: object) -> bool:
    return not isinstance(value, (Mapping, tuple))


def _checked(leaf: Leaf, example: int, value: Any) -> np.ndarray[Any, Any]:
    """Return a row of the dtype in which JAX has it."""
    array = np.asarray(value)
    dtype = jax.dtypes.canonicalize_dtype(array.dtype)
    # A number of Python fits as it does in JAX.
    is_number = type(value) in (bool, int, float, complex)
    if array.shape != leaf.example_shape or not (dtype == leaf.dtype or is_number):
        raise DataError(
            f"example {example} of the source has {array.dtype}{list(array.shape)} for "
            f"{leaf.name}, the batch of the step has rows of {leaf.dtype}"
            f"{list(leaf.example_shape)}; give rows of this shape and dtype, or make the loader "
            "for another batch"
        )
    return array.astype(leaf.dtype, copy=False)
