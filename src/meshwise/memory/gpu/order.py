"""The order in which XLA:GPU runs the instructions of a program.

Of three orders it takes the one of least memory, most often that of its list scheduler.  Then it
moves what hides collectives: gradients of weights, which no other product needs, run late, next to
their sums.

Source: XLA hlo_memory_scheduler.cc (ListScheduler) and latency_hiding_scheduler.cc; compared in
docs/measurements/target_memory.md.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

from meshwise.memory.local_program import Instructions, LocalValue
from meshwise.memory.order import dependences, post_order

# The sum of a scalar, as a loss, hides nothing.
_SCALAR_BYTES = 8
# Whether it is late; bytes that it makes more than it frees; how many read what it makes; itself.
_Rank = tuple[bool, int, int, int]


def order_with_late_sums(program: Instructions, values: Sequence[LocalValue]) -> list[int]:
    """Return positions of the instructions in the order in which they run.

    Of what could run next it takes what makes least bytes more than it frees, then what most others
    read; what is late only if nothing else could run.

    Args:
        program: The instructions.
        values: The values of the program.
    """
    graph = dependences(program)
    walk = post_order(graph.results, graph.before)
    place = {i: now for now, i in enumerate(walk)}
    before = [[j for j in found if place[j] < place[i]] for i, found in enumerate(graph.before)]
    late = _late(walk, before, [values[step.value] for step in program.steps])
    return _Schedule(program, values, before, late).order()


def _late(
    walk: Sequence[int], before: Sequence[Sequence[int]], values: Sequence[LocalValue]
) -> list[bool]:
    """Return which instructions lead to sums over devices, and to no other product.

    Args:
        walk: The instructions in an order in which they could run.
        before: For each instruction those that must run before it.
        values: For each instruction the value for which it stands.
    """
    feeds_product = [False] * len(before)
    feeds_sum = [value.is_summed and value.num_bytes > _SCALAR_BYTES for value in values]
    for i in reversed(walk):
        for j in before[i]:
            feeds_product[j] |= feeds_product[i] or values[i].is_product
            feeds_sum[j] |= feeds_sum[i]
    return [
        sums and not multiplies for sums, multiplies in zip(feeds_sum, feeds_product, strict=True)
    ]


class _Schedule:
    """Instructions while they are put in order; a rank is old once a buffer has one reader left."""

    def __init__(
        self,
        program: Instructions,
        values: Sequence[LocalValue],
        before: Sequence[Sequence[int]],
        late: Sequence[bool],
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
        self._num_before = [len(found) for found in before]
        self._after: list[list[int]] = [[] for _ in before]
        for i, found in enumerate(before):
            for j in found:
                self._after[j].append(i)

    def _rank(self, i: int) -> _Rank:
        """Return what is least for what runs next."""
        freed = sum(self._size[b] for b in self._reads[i] if self._num_left[b] == 1)
        return self._late[i], self._made[i] - freed, -self._num_readers[i], i

    def order(self) -> list[int]:
        """Return positions of all instructions."""
        ready = [self._rank(i) for i, count in enumerate(self._num_before) if not count]
        heapq.heapify(ready)
        found: list[int] = []
        while ready:
            rank = heapq.heappop(ready)
            i = rank[-1]
            # Negative once it has run.
            if self._num_before[i] or self._rank(i) != rank:
                continue
            self._num_before[i] = -1
            found.append(i)
            for j in self._freed_by(i):
                heapq.heappush(ready, self._rank(j))
        return found

    def _freed_by(self, i: int) -> Iterator[int]:
        """Yield what can run from now on, and what would free more than before."""
        for j in self._after[i]:
            self._num_before[j] -= 1
        last = [b for b in self._reads[i] if self._num_left[b] == 2]
        for b in self._reads[i]:
            self._num_left[b] -= 1
        yield from (j for j in self._after[i] if not self._num_before[j])
        yield from (j for b in last for j in self._readers[b] if not self._num_before[j])
