"""Collects the loops of one rule while its dims are walked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from meshwise.graph.loops import PARALLEL, DimMap, Loop


class LoopList:
    """Loops in the order in which they are added; lives only inside one rule function."""

    def __init__(self) -> None:
        self._loops: list[Loop] = []

    def add(self, size: int, kind: str = PARALLEL, *, block: bool = False) -> tuple[int, ...]:
        """A new loop, as the entry of a dim that follows it; () where nothing can be split."""
        if size <= 1:
            return ()
        self._loops.append(Loop(size, kind, block))
        return (len(self._loops) - 1,)

    def add_dims(self, shape: Sequence[int], whole: Iterable[int] = ()) -> list[tuple[int, ...]]:
        """One parallel loop for each dim of a shape that is not in `whole`."""
        skipped = set(whole)
        return [() if dim in skipped else self.add(size) for dim, size in enumerate(shape)]

    def done(self) -> tuple[Loop, ...]:
        """The loops."""
        return tuple(self._loops)


def dims_like(shape: Sequence[int]) -> DimMap:
    """All dims whole."""
    return ((),) * len(shape)
