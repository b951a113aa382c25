"""Arguments and results of a step with stacks of layers, around a pipeline on single layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
from jax import Array
from jax.sharding import NamedSharding

from meshwise.jax_compat.arrays import refill
from meshwise.runtime.pipeline.stacking import StackHome, Stacking, home_of
from meshwise.runtime.transports.tile_copier import TileCopier
from meshwise.trace.layers.stacks.unstack import Leaf, Unstacked


class StackedEnds:
    """What stands before and after a step in stages.

    Attributes:
        shardings: Where each flat argument of the user's step lives between steps; None for one
            that is not read.
    """

    def __init__(
        self, ends: Unstacked, homes: Sequence[NamedSharding | None], copier: TileCopier
    ) -> None:
        """Find out where stacks live.

        Args:
            ends: How the two steps go together.
            homes: Where each argument of the pipeline lives; None for one that is not read.
            copier: Moves layers and stacks.
        """
        self._stacking = Stacking(copier)
        self._ends = ends
        self._homes = [
            self._home(leaf, homes, aval.shape)
            for leaf, aval in zip(ends.arguments, ends.original.in_avals, strict=True)
        ]
        self._of_argument = {j: i for i, j in ends.original.aliases}
        self.shardings = tuple(
            homes[leaf.places[0]] if leaf.dim is None else home and home.sharding
            for leaf, home in zip(ends.arguments, self._homes, strict=True)
        )

    @staticmethod
    def _home(
        leaf: Leaf, homes: Sequence[NamedSharding | None], shape: Sequence[int]
    ) -> StackHome | None:
        dim = leaf.dim
        if dim is None:
            return None
        members = [home for n in leaf.places if (home := homes[n]) is not None]
        if len(members) < len(leaf.places):
            return None
        return home_of(dim, (*shape[:dim], *shape[dim + 1 :]), members)

    @staticmethod
    def _found(dim: int, members: Sequence[Array]) -> StackHome | None:
        """Return where a stack would live whose layers are where they are."""
        shardings = [x.sharding for x in members if isinstance(x.sharding, NamedSharding)]
        every = len(shardings) == len(members)
        return home_of(dim, members[0].shape, shardings) if every else None

    def state_bytes(self, devices: frozenset[Any]) -> int:
        """Return the bytes of the stacks of the state on one of some devices, between steps."""
        found = 0
        for i in self._of_argument.values():
            home, aval = self._homes[i], self._ends.original.in_avals[i]
            if home is not None and not devices.isdisjoint(home.sharding.device_set):
                shape = home.sharding.shard_shape(aval.shape)
                found += math.prod(shape) * aval.dtype.itemsize
        return found

    def arguments(self, leaves: Sequence[Array]) -> tuple[list[Array], list[Array]]:
        """Stacks taken apart; they stay as they are.

        Returns:
            Arguments of the pipeline; the stacks of the state that lie where they live, which are
            to be deleted when the state is overwritten.
        """
        state = set(self._of_argument.values())
        found: list[Array] = []
        gone: list[Array] = []
        for i, (leaf, home, value) in enumerate(
            zip(self._ends.arguments, self._homes, leaves, strict=True)
        ):
            if leaf.dim is None:
                found.append(value)
            elif home is None:
                found += [value[(*[slice(None)] * leaf.dim, k)] for k in range(len(leaf.places))]
            else:
                found += self._stacking.apart(home, value)
                if i in state and isinstance(value, jax.Array) and value.sharding == home.sharding:
                    gone.append(value)
        return found, gone

    def restore(self, leaves: Sequence[Array], members: Sequence[Array]) -> None:
        """Put deleted stacks together again, before any of their layers is overwritten.

        It needs no more memory than taking them apart did.

        Args:
            leaves: Arguments of the user's step.
            members: Arguments of the pipeline, as `arguments` gave them.
        """
        for leaf, home, value in zip(self._ends.arguments, self._homes, leaves, strict=True):
            if home is not None and isinstance(value, jax.Array) and value.is_deleted():
                layers = [members[n] for n in leaf.places]
                refill(value, self._stacking.together(home, layers))

    def results(self, values: Sequence[Array]) -> list[Array]:
        """Results of the user's step."""
        found: list[Array] = []
        for j, leaf in enumerate(self._ends.results):
            members = [values[n] for n in leaf.places]
            if leaf.dim is None:
                found.append(members[0])
                continue
            home = self._homes[self._of_argument[j]] if j in self._of_argument else None
            if home is None:
                home = self._found(leaf.dim, members)
            if home is None:
                found.append(self._stacking.side_by_side(leaf.dim, members))
            else:
                found.append(self._stacking.together(home, members))
        return found
