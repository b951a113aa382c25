"""Collects the loops of one rule while its dims are walked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from meshwise.graph.loops import PARALLEL, DimMap, Loop


class LoopList:
    """Loops in the order in which they are added; lives only inside one rule function."""

    def __init__(self) -> None:
        self._loops: list[Loop] = []

    def add(self, size: int, kind: str = PARALLEL, *, block: bool = False) -> tuple[int, ...]:
        """Add a loop; return the entry of a dim that follows it, () where nothing can be split."""
        if size <= 1:
            return ()
        self._loops.append(Loop(size, kind, block))
        return (len(self._loops) - 1,)

    def add_dims(self, shape: Sequence[int], whole: Iterable[int] = ()) -> list[tuple[int, ...]]:
        """Add one parallel loop for each dim of a shape that is not in `whole`."""
        skipped = set(whole)
        return [() if dim in skipped else self.add(size) for dim, size in enumerate(shape)]

    def done(self) -> tuple[Loop, ...]:
        """Return the loops."""
        return tuple(self._loops)


def dims_like(shape: Sequence[int]) -> DimMap:
    """Return all dims whole."""
    return ((),) * len(shape)
