"""Which values of a program get a buffer, and which buffers each instruction reads.

XLA's fusion runs from the results backwards: a fusible value goes into what reads it; into
several readers only if that repeats nothing expensive.  What an opaque instruction reads is a
buffer.

Source: XLA InstructionFusion and CpuInstructionFusion, read off compiled programs.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

from meshwise.intra.reshapes import vanishing_views
from meshwise.intra.values import (
    FUSIBLE,
    INITIAL,
    INPUT,
    OPAQUE,
    PART,
    REDUCE,
    SCALAR_BYTES,
    VIEW,
    Values,
)

# What stands so many values later depends on a value: not worth a search.
_FAR = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Instructions:
    """Instructions in program order.

    Attributes:
        value: The value for which each stands (of a loop: the loop itself).
        reads: Buffers that each reads, without repetition; buffers are named by values.
        defines: Buffers that each makes.
        may_reuse: For each the buffers over which its result may lie, if they die there.
        after: Other instructions (positions) that must run before.
        live_out: Buffers that leave the program, in the order of the results.
        over_input: Result buffers that take the place of a donated argument.
        is_plain: Whether XLA keeps the instruction as it came: a collective, a loop.
        input_users: Further readers of the inputs; inside of a loop XLA counts them too.
        fan: Over how many paths an instruction reaches its operands, where not one.
        num_instructions: Of the whole program, arguments and views included.
    """

    value: list[int]
    reads: list[tuple[int, ...]]
    defines: list[tuple[int, ...]]
    may_reuse: list[tuple[int, ...]]
    after: dict[int, list[int]]
    live_out: tuple[int, ...]
    over_input: frozenset[int]
    is_plain: list[bool]
    input_users: dict[int, int]
    fan: dict[int, int]
    num_instructions: int


def _users(values: Values) -> list[list[int]]:
    users: list[list[int]] = [[] for _ in values.kind]
    for v, inputs in enumerate(values.inputs):
        for u in dict.fromkeys(inputs):
            users[u].append(v)
    return users


def _with_library_calls(values: Values, users: list[list[int]]) -> list[int]:
    """Kinds, where a reduction and the element-wise step that takes it off its operand are one.

    A softmax begins with `x - max(x)`: XLA:CPU makes one library call of it, and of a step
    after it that is the only one.
    """
    kind = list(values.kind)
    for v, inputs in enumerate(values.inputs):
        if kind[v] != FUSIBLE or len(inputs) != 2 or not values.is_absorbed[v]:
            continue
        x, spread = inputs
        chain = [spread]
        while kind[chain[-1]] in (FUSIBLE, VIEW) and len(users[chain[-1]]) == 1:
            below = [u for u in values.inputs[chain[-1]] if values.inputs[u]]
            if len(below) != 1:
                break
            chain.append(below[0])
        last = chain[-1]
        if kind[last] != REDUCE or len(users[last]) != 1 or values.inputs[last] != (x,):
            continue
        root = v
        if len(users[v]) == 1:
            (user,) = users[v]
            if values.is_absorbed[user] and values.inputs[user] == (v,):
                root = user
        kind[last] = FUSIBLE
        kind[root] = REDUCE
    return kind


def _expensive(values: Values, users: list[list[int]]) -> list[bool]:
    """What is not repeated for a second user.

    A divisor that is spread out becomes a factor, its reciprocal, and products are cheap; but not
    a scalar with other users.

    Source: XLA's algebraic simplifier, by experiment (JAX 0.10.2).
    """
    expensive = list(values.is_expensive)
    for v, divisor in values.divisors.items():
        size = values.num_bytes[v]
        if values.is_wide(divisor, v):
            continue
        source = divisor
        while values.num_bytes[source] >= size and values.inputs[source]:
            source = values.inputs[source][0]
        is_shared = len(users[source]) > 1 and values.inputs[source] != ()
        if not (is_shared and values.num_bytes[source] <= SCALAR_BYTES):
            expensive[v] = False
    return expensive


def _stored(
    values: Values,
    kind: list[int],
    users: list[list[int]],
    expensive: list[bool],
    vanishing: frozenset[int],
) -> tuple[list[bool], list[bool], list[bool]]:
    """For each value: is it stored; do fusible readers repeat it all the same; is it absorbed.

    A softmax with a mask: a sum reads `where(mask, exp(x), 0)`, so that is stored, and the gradient
    repeats the `where`; then `exp` has two users and is stored as well.  So is an embedding under
    the sum with the positions, which each layer norm repeats.

    Source: InstructionFusion::ShouldFuse asks for the users that an expensive operand has by then,
    with the fusions that already took its reader (JAX 0.10.2, `copy_gather_fusion` of a GPT).
    """
    count = len(kind)
    inputs = values.inputs
    leaves = set(values.outputs)
    stored = [False] * count
    repeated = [False] * count
    absorbed = [False] * count
    roots: list[frozenset[int]] = [frozenset()] * count
    for v in range(count - 1, -1, -1):
        readers = users[v]
        if not readers and v not in leaves:
            continue  # Never read: not computed.
        if kind[v] not in (FUSIBLE, VIEW):
            stored[v] = True
            roots[v] = frozenset((v,))
            continue
        is_read_stored = v in leaves
        found: frozenset[int] = frozenset()
        live = 0
        for u in readers:
            if not stored[u] and not roots[u]:
                continue  # The reader itself is never read.
            live += 1
            if kind[u] == REDUCE or absorbed[u]:
                is_own = kind[u] == REDUCE and values.kind[u] == FUSIBLE
                if len(readers) == 1 and (values.is_absorbed[v] or not inputs[v] or is_own):
                    absorbed[v] = True
                    found |= roots[u]
                else:
                    is_read_stored = True
            elif _is_fused(kind[u], u in vanishing, is_only=len(readers) == 1):
                found |= roots[u]
            else:
                is_read_stored = True
        if not live and v not in leaves:
            continue
        if not is_read_stored and len(found) > 1 and not expensive[v]:
            is_read_stored = not _is_unary(values, v) and any(
                _is_blocked(values, v, u) for u in readers
            )
        if is_read_stored or (len(found) > 1 and expensive[v]):
            stored[v] = True
            repeated[v] = len(readers) > 1 and not expensive[v] and _is_unary(values, v)
            # Who repeats it reads its operands, too: of an expensive one that is a second user.
            roots[v] = found | {v} if repeated[v] else frozenset((v,))
        else:
            roots[v] = found
    return stored, repeated, absorbed


def _is_fused(kind: int, is_vanishing: bool, *, is_only: bool) -> bool:
    """Whether a reader computes what it reads by itself."""
    return (kind in (FUSIBLE, VIEW) and not is_vanishing) or (kind == INITIAL and is_only)


def _is_unary(values: Values, v: int) -> bool:
    """Whether at most one operand has to be read in full."""
    return sum(values.is_wide(u, v) for u in set(values.inputs[v])) <= 1


def _is_blocked(values: Values, v: int, reader: int) -> bool:
    """Whether `v` also reaches the reader through something that cannot be fused.

    Then XLA does not repeat it.  Source: InstructionFusion::CanFuseOnAllPaths.
    """
    kind, inputs = values.kind, values.inputs
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


class _Assembly:
    """Instructions while they are put together; lives only inside `instructions`."""

    def __init__(self, values: Values) -> None:
        self.values = values
        self.users = _users(values)
        self.kind = _with_library_calls(values, self.users)
        expensive = _expensive(values, self.users)
        self.vanishing = vanishing_views(values, self.users)
        self.stored, self.repeated, self.absorbed = _stored(
            values, self.kind, self.users, expensive, self.vanishing
        )
        count = len(self.kind)
        self.root = list(range(count))
        self.expression: list[tuple[int, ...]] = [()] * count
        self.position: dict[int, int] = {}
        self.leaving = frozenset(values.outputs)
        self.value: list[int] = []
        self.reads: list[tuple[int, ...]] = []
        self.defines: list[tuple[int, ...]] = []
        self.may_reuse: list[tuple[int, ...]] = []

    def read(self, reader: int, v: int) -> tuple[int, ...]:
        """Buffers that a reader of `v` reads."""
        buffer = self.buffer(reader, v)
        return self.expression[v] if buffer is None else (buffer,)

    def operands(self, v: int) -> tuple[int, ...]:
        """Buffers that an instruction reads, in the order of its operands.

        XLA fuses the latest operand first; what that reads comes to the end of the list.
        """
        found: dict[int, None] = {}  # Operands that are values, in order.
        waiting: list[int] = []
        fused = {v}

        def add(reader: int) -> None:
            for u in self.values.inputs[reader]:
                buffer = self.buffer(reader, u)
                if buffer is not None:
                    found[buffer] = None
                elif u not in fused:
                    fused.add(u)
                    heappush(waiting, -u)

        add(v)
        while waiting:
            add(-heappop(waiting))
        return tuple(found)

    def buffer(self, reader: int, u: int) -> int | None:
        """The buffer in which a reader finds an operand; None if it computes it itself."""
        if self.kind[u] == INPUT:
            return u
        if not self.stored[u]:
            return None
        is_fusible = (
            self.kind[reader] in (FUSIBLE, VIEW)
            and not self.absorbed[reader]
            and reader not in self.vanishing
        )
        return None if self.repeated[u] and is_fusible else self.root[u]

    def shared_root(self, v: int) -> int | None:
        """The buffer in which `v` already lies, if it needs none of its own."""
        inputs, kind = self.values.inputs, self.kind
        source = inputs[v][0] if inputs[v] else -1
        if kind[v] == VIEW and kind[source] == INPUT:
            return source
        is_read = v in self.vanishing or not self.repeated[source]
        if kind[v] == VIEW and self.stored[source] and is_read:
            return self.root[source]
        if kind[v] == INITIAL and kind[source] != INPUT and self.stored[source]:
            # The loop may write over a value that nothing else reads.
            is_own = self.root[source] == source and source not in self.leaving
            if is_own and len(self.users[source]) == 1:
                return source
        return None

    def run(self) -> None:
        values, kind = self.values, self.kind
        for v, inputs in enumerate(values.inputs):
            if kind[v] == INPUT:
                continue
            if kind[v] == PART:
                loop = self.position[inputs[0]]
                self.defines[loop] = (*self.defines[loop], v)
                continue
            reads = tuple(dict.fromkeys(x for u in inputs for x in self.read(v, u)))
            self.expression[v] = reads
            if not self.stored[v]:
                continue
            shared = self.shared_root(v)
            if shared is not None:
                self.root[v] = shared
                continue
            self.position[v] = len(self.value)
            self.value.append(v)
            ordered = self.operands(v) if kind[v] in (FUSIBLE, REDUCE) else reads
            self.reads.append(ordered if set(ordered) == set(reads) else reads)
            self.defines.append(() if v in values.loops else (v,))
            self.may_reuse.append(self.reusable(v))

    def reusable(self, v: int) -> tuple[int, ...]:
        """Buffers over which the result of an instruction may lie."""
        values = self.values
        if v in values.loops:
            # The loop works in the buffers of its initial carries.
            return tuple(self.root[u] for u in values.inputs[v] if self.kind[u] == INITIAL)
        is_elementwise = values.kind[v] in (FUSIBLE, INITIAL) and not values.is_moving[v]
        return self.operands(v) if is_elementwise else ()

    def readers_of_inputs(self) -> dict[int, list[int]]:
        readers: dict[int, list[int]] = {}
        for i, reads in enumerate(self.reads):
            for b in reads:
                if self.kind[b] == INPUT:
                    readers.setdefault(b, []).append(i)
        return readers

    def donations(self, readers: dict[int, list[int]]) -> tuple[set[int], dict[int, list[int]]]:
        """Results that overwrite an argument, and what must have read it before."""
        values = self.values
        over_input: set[int] = set()
        after: dict[int, list[int]] = {}
        read_again = {b for reads in self.reads for b in reads}
        for v, argument in values.aliased.items():
            if self.kind[v] == INPUT or self.root[v] != v:
                continue
            over_input.add(v)
            maker = self.position[values.inputs[v][0] if self.kind[v] == PART else v]
            # Later readers come first too, unless they may depend on the new value.
            before = [
                i
                for i in readers.get(argument, ())
                if i < maker
                or (i > maker and v not in read_again and self.value[i] not in values.aliased)
            ]
            if before:
                after[maker] = before
        return over_input, after


def instructions(values: Values) -> Instructions:
    """What runs, and on which buffers."""
    made = _Assembly(values)
    made.run()
    readers = made.readers_of_inputs()
    over_input, after = made.donations(readers)
    kind = made.kind
    return Instructions(
        value=made.value,
        reads=made.reads,
        defines=made.defines,
        may_reuse=made.may_reuse,
        after=after,
        live_out=tuple(dict.fromkeys(made.root[v] for v in values.outputs if kind[v] != INPUT)),
        over_input=frozenset(over_input | values.placed),
        is_plain=[
            kind[v] == OPAQUE and (values.is_copy[v] or v in values.loops) for v in made.value
        ],
        input_users={b: len(found) - 1 for b, found in readers.items()} if values.is_body else {},
        fan={made.position[v]: n for v, n in values.fan.items() if v in made.position},
        num_instructions=sum(made.stored) + 1,  # The tuple of the results.
    )
