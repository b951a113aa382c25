"""Which values of a program get a buffer of their own.

XLA's fusion runs from the results backwards: a fusible value goes into what reads it; into
several readers only if that repeats nothing expensive.  What an opaque instruction reads is a
buffer.

Source: XLA InstructionFusion and CpuInstructionFusion, read off compiled programs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from meshwise.intra.values import FUSIBLE, INITIAL, REDUCE, SCALAR_BYTES, VIEW, Values
from meshwise.intra.ynnpack import YnnpackCalls

# What stands so many values later depends on a value: not worth a search.
_FAR = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredValues:
    """For each value what becomes of it.

    Attributes:
        stored: It has a buffer.
        repeated: Fusible readers compute it themselves all the same.
        absorbed: It is part of a reduction, or of another call of YNNPACK.
    """

    stored: list[bool]
    repeated: list[bool]
    absorbed: list[bool]


def stored_values(
    values: Values,
    calls: YnnpackCalls,
    users: Sequence[Sequence[int]],
    vanishing: Collection[int],
) -> StoredValues:
    """What becomes of each value of a program.

    A softmax with a mask: a sum reads `where(mask, exp(x), 0)`, so that is stored, and the gradient
    repeats the `where`; then `exp` has two users and is stored as well.  So is an embedding under
    the sum with the positions, which each layer norm repeats.

    Args:
        values: Of the program.
        calls: Of YNNPACK.
        users: Readers of each value.
        vanishing: Views whose reader reads what lies below.

    Source: InstructionFusion::ShouldFuse asks for the users that an expensive operand has by then,
    with the fusions that already took its reader (JAX 0.10.2, `copy_gather_fusion` of a GPT).
    """
    found = _Storage(values, calls, users, vanishing)
    for v in range(len(values.kind) - 1, -1, -1):
        found.decide(v)
    return StoredValues(stored=found.stored, repeated=found.repeated, absorbed=found.absorbed)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """How a value is read: as a buffer, in which instructions, by how many, absorbed by all."""

    is_buffer: bool
    roots: frozenset[int]
    live: int
    is_absorbed: bool


class _Storage:
    """Values while they are decided, from the last one; lives only inside `stored_values`."""

    def __init__(
        self,
        values: Values,
        calls: YnnpackCalls,
        users: Sequence[Sequence[int]],
        vanishing: Collection[int],
    ) -> None:
        count = len(values.kind)
        self.values, self.users = values, users
        self.kind, self.inside = calls.kind, calls.inside
        self.vanishing = vanishing
        self.leaving = frozenset(values.outputs)
        self.expensive = _expensive(values, users)
        self.stored = [False] * count
        self.repeated = [False] * count
        self.absorbed = [False] * count
        # The instructions that compute a value.
        self.roots: list[frozenset[int]] = [frozenset()] * count

    def decide(self, v: int) -> None:
        """What becomes of a value, after all that reads it."""
        if not self.users[v] and v not in self.leaving:
            return  # Never read: not computed.
        if v in self.inside:
            self.absorbed[v] = True
            self.roots[v] = frozenset[int]().union(*(self.roots[u] for u in self.users[v]))
            return
        if self.kind[v] not in (FUSIBLE, VIEW):
            self.stored[v] = True
            self.roots[v] = frozenset((v,))
            return
        reading = self.reading(v)
        self.absorbed[v] = reading.is_absorbed
        if not reading.live and v not in self.leaving:
            return
        is_twice = len(reading.roots) > 1
        if (
            v in self.leaving
            or reading.is_buffer
            or (is_twice and self.expensive[v])
            or (v in self.values.branching and (is_twice or reading.live > 1))
            or (is_twice and not _is_unary(self.values, v) and self.is_blocked(v))
        ):
            self.store(v, reading.roots)
        else:
            self.roots[v] = reading.roots

    def store(self, v: int, roots: frozenset[int]) -> None:
        """A value gets a buffer; who repeats it reads its operands, too."""
        self.stored[v] = True
        self.repeated[v] = (
            len(self.users[v]) > 1
            and not self.expensive[v]
            and v not in self.values.branching
            and _is_unary(self.values, v)
        )
        # Of an expensive operand that is a second user.
        self.roots[v] = roots | {v} if self.repeated[v] else frozenset((v,))

    def reading(self, v: int) -> _Reading:
        """How the readers of a value read it."""
        readers, inputs = self.users[v], self.values.inputs
        is_buffer, live, is_absorbed = False, 0, False
        roots: frozenset[int] = frozenset()
        for u in readers:
            if not self.stored[u] and not self.roots[u]:
                continue  # The reader itself is never read.
            live += 1
            if u in self.inside and inputs[v]:
                is_buffer = True
            elif self.kind[u] == REDUCE or self.absorbed[u]:
                is_own = self.kind[u] == REDUCE and self.values.kind[u] == FUSIBLE
                if len(readers) == 1 and (self.values.is_absorbed[v] or not inputs[v] or is_own):
                    is_absorbed = True
                    roots |= self.roots[u]
                else:
                    is_buffer = True
            elif self.is_fused(u, is_only=len(readers) == 1):
                roots |= self.roots[u]
            else:
                is_buffer = True
        return _Reading(is_buffer=is_buffer, roots=roots, live=live, is_absorbed=is_absorbed)

    def is_fused(self, reader: int, *, is_only: bool) -> bool:
        """Whether a reader computes what it reads by itself."""
        kind = self.kind[reader]
        if kind in (FUSIBLE, VIEW):
            return reader not in self.vanishing
        return kind == INITIAL and is_only

    def is_blocked(self, v: int) -> bool:
        """Whether a value cannot be computed by all of its readers."""
        return any(self.is_reached_otherwise(v, u) for u in self.users[v])

    def is_reached_otherwise(self, v: int, reader: int) -> bool:
        """Whether `v` also reaches the reader through something that cannot be fused.

        Then XLA does not repeat it.  Source: InstructionFusion::CanFuseOnAllPaths.
        """
        kind, inputs = self.values.kind, self.values.inputs
        others = [w for w in inputs[reader] if w > v]
        if any(w - v > _FAR for w in others):
            return True
        seen = set(others)
        stack = list(others)
        while stack:
            for u in inputs[stack.pop()]:
                if u > v and u not in seen:
                    seen.add(u)
                    stack.append(u)
        reached = {v}
        for w in sorted(seen):
            if any(u in reached for u in inputs[w]):
                if kind[w] not in (FUSIBLE, VIEW):
                    return True
                reached.add(w)
        return False


def _is_unary(values: Values, v: int) -> bool:
    """Whether at most one operand has to be read in full."""
    return sum(values.is_wide(u, v) for u in set(values.inputs[v])) <= 1


def _expensive(values: Values, users: Sequence[Sequence[int]]) -> list[bool]:
    """What is not repeated for a second user.

    A divisor that is spread out becomes a factor, its reciprocal, and products are cheap; but not
    a scalar with other users.

    Source: XLA's algebraic simplifier, by experiment (JAX 0.10.2).
    """
    expensive = list(values.is_expensive)
    for v in values.divisors:
        source = values.narrow_divisor(v)
        if source is None:
            continue
        is_shared = len(users[source]) > 1 and values.inputs[source] != ()
        if not (is_shared and values.num_bytes[source] <= SCALAR_BYTES):
            expensive[v] = False
    return expensive
