"""What runs, and which buffers each instruction reads and makes.

What gets a buffer is decided in `stored`; here instructions are put together: which buffers they
read, in which order, over which of them their results may lie.

Source: XLA InstructionFusion and CpuInstructionFusion, read off compiled programs.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

from meshwise.intra.reshapes import vanishing_views
from meshwise.intra.stored import stored_values
from meshwise.intra.values import (
    FUSIBLE,
    INITIAL,
    INPUT,
    OPAQUE,
    PART,
    REDUCE,
    VIEW,
    Values,
)
from meshwise.intra.ynnpack import ynnpack_calls


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
        apart: Result buffers with a place of their own, outside of the heap.
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
    apart: frozenset[int]
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


class _Assembly:
    """Instructions while they are put together; lives only inside `instructions`."""

    def __init__(self, values: Values) -> None:
        self.values = values
        self.users = _users(values)
        calls = ynnpack_calls(values, self.users)
        self.kind, self.in_call = calls.kind, calls.inside
        self.vanishing = vanishing_views(values, self.users)
        storage = stored_values(values, calls, self.users, self.vanishing)
        self.stored, self.repeated = storage.stored, storage.repeated
        self.absorbed = storage.absorbed
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
            and reader not in self.in_call
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
        if v in values.overwriting:
            return self.read(v, values.inputs[v][0])
        is_elementwise = self.kind[v] in (FUSIBLE, INITIAL) and not values.is_moving[v]
        if not is_elementwise:
            return ()
        blocked = self.read_otherwise(v)
        return tuple(b for b in self.operands(v) if b not in blocked)

    def read_otherwise(self, v: int) -> set[int]:
        """Buffers whose elements an instruction reads at other places than it writes its own.

        A view counts: the shapes have to be equal.  So does the one after a product that XLA
        computes with two or three dims.

        Source: XLA hlo_dataflow_analysis.cc (CanShareOperandBufferWithUser).
        """
        values = self.values
        found: set[int] = set()
        seen = {(v, False)}
        stack = [(v, False)]
        while stack:
            reader, is_moved = stack.pop()
            is_moved = is_moved or self.kind[reader] == VIEW or values.is_moving[reader]
            for u in values.inputs[reader]:
                buffer = self.buffer(reader, u)
                if buffer is None:
                    if (u, is_moved) not in seen:
                        seen.add((u, is_moved))
                        stack.append((u, is_moved))
                elif is_moved or buffer != u or (u in values.flat and self.kind[u] == OPAQUE):
                    found.add(buffer)
        return found

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
        apart=frozenset(),
        is_plain=[
            kind[v] == OPAQUE and (values.is_copy[v] or v in values.loops) for v in made.value
        ],
        input_users={b: len(found) - 1 for b, found in readers.items()} if values.is_body else {},
        fan={made.position[v]: n for v, n in values.fan.items() if v in made.position},
        num_instructions=sum(made.stored) + 1,  # The tuple of the results.
    )
