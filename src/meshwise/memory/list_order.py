"""The order of XLA's list scheduler.

Source: XLA hlo_memory_scheduler.cc (ListScheduler).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet

from meshwise.memory.local_program import Instructions, LocalValue
from meshwise.memory.order import dependences, post_order

# Whether it is late; bytes that it makes more than it frees; how many read what it makes; itself.
_Rank = tuple[bool, int, int, int]


def forerunners(program: Instructions) -> list[list[int]]:
    """Return for each instruction those that must run before it, without circles.

    Of two that wait for one another, which only a copy could serve, one runs first.

    Args:
        program: The instructions.
    """
    graph = dependences(program)
    order = post_order(graph.results, graph.before)
    place = {i: now for now, i in enumerate(order)}
    return [[j for j in found if place[j] < place[i]] for i, found in enumerate(graph.before)]


def list_order(
    program: Instructions,
    values: Sequence[LocalValue],
    before: Sequence[Sequence[int]],
    *,
    late: AbstractSet[int] = frozenset(),
    wanted: AbstractSet[int] = frozenset(),
) -> list[int]:
    """Return positions of the instructions in the order in which they run.

    Of what could run next it takes what makes least bytes more than it frees, then what most
    others read.

    Args:
        program: The instructions.
        values: The values of the program.
        before: For each instruction those that must run before it.
        late: What runs only if nothing else could.
        wanted: What reads nothing, and runs right before the first instruction that reads it.
    """
    return _ListSchedule(program, values, before, late, wanted).order()


class _ListSchedule:
    """Instructions while they are put in order; a rank is old once a buffer has one reader left."""

    def __init__(
        self,
        program: Instructions,
        values: Sequence[LocalValue],
        before: Sequence[Sequence[int]],
        late: AbstractSet[int],
        wanted: AbstractSet[int],
    ) -> None:
        counted = {b for s in program.steps for b in s.defines} - program.over_input
        self._size = {b: values[b].num_bytes for b in counted}
        self._reads = [[b for b in dict.fromkeys(s.reads) if b in counted] for s in program.steps]
        self._readers: dict[int, list[int]] = {b: [] for b in counted}
        for i, reads in enumerate(self._reads):
            for b in reads:
                self._readers[b].append(i)
        results = frozenset(program.results)
        self._num_left = {b: len(found) + (b in results) for b, found in self._readers.items()}
        self._made = [sum(self._size.get(b, 0) for b in s.defines) for s in program.steps]
        self._num_readers = [
            sum(len(self._readers.get(b, ())) for b in step.defines) for step in program.steps
        ]
        self._late = late
        self._wanted = [[j for j in found if j in wanted] for found in before]
        self._apart = wanted
        self._num_before = [
            len(found) - len(apart) for found, apart in zip(before, self._wanted, strict=True)
        ]
        self._after: list[list[int]] = [[] for _ in before]
        for i, found in enumerate(before):
            for j in found:
                if j not in wanted:
                    self._after[j].append(i)

    def _rank(self, i: int) -> _Rank:
        """Return what is least for what runs next."""
        freed = sum(self._size[b] for b in self._reads[i] if self._num_left[b] == 1)
        return i in self._late, self._made[i] - freed, -self._num_readers[i], i

    def order(self) -> list[int]:
        """Return positions of all instructions."""
        ready = [
            self._rank(i)
            for i, count in enumerate(self._num_before)
            if not count and i not in self._apart
        ]
        heapq.heapify(ready)
        found: dict[int, None] = {}
        while ready:
            rank = heapq.heappop(ready)
            i = rank[-1]
            if i in found or self._rank(i) != rank:
                continue
            found |= dict.fromkeys((*(j for j in self._wanted[i] if j not in found), i))
            for j in self._freed_by(i):
                heapq.heappush(ready, self._rank(j))
        return [*found, *(i for i in sorted(self._apart) if i not in found)]

    def _freed_by(self, i: int) -> Iterator[int]:
        """Yield what can run from now on, and what would free more than before."""
        for j in self._after[i]:
            self._num_before[j] -= 1
        last = [b for b in self._reads[i] if self._num_left[b] == 2]
        for b in self._reads[i]:
            self._num_left[b] -= 1
        yield from (j for j in self._after[i] if not self._num_before[j])
        yield from (j for b in last for j in self._readers[b] if not self._num_before[j])
