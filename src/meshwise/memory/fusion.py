"""What XLA fuses, and which values get a buffer.

Fusion runs from the results backwards: a fusible value goes into what reads it; into several
readers only if that repeats nothing expensive, or moves fewer bytes (`FusionRules`).  What an
opaque instruction reads is a buffer.

Source: XLA InstructionFusion, CpuInstructionFusion, PriorityFusion; compiled programs.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NamedTuple

from meshwise.memory.local_program import (
    InstructionKind,
    Instructions,
    LocalInstruction,
    LocalProgram,
    LocalValue,
)
from meshwise.memory.products import (
    MUCH,
    epilogues,
    is_narrower,
    narrowest_bytes,
    rounded_for_products,
)

_FUSED = (InstructionKind.FUSIBLE, InstructionKind.VIEW)
# What may lie where its first operand lies.
_SHARING = (InstructionKind.VIEW, InstructionKind.INITIAL, InstructionKind.BARRIER)


@dataclass(frozen=True, slots=True, kw_only=True)
class FusionRules:
    """How a compiler decides what is fused.

    Attributes:
        by_traffic: Whether all readers compute a value again, reductions too, where that moves
            fewer bytes, or none does, and what reads the same is computed at once; if not, each
            reader that can does so, wherever nothing expensive is repeated.
        into_products: Whether dense products and convolutions compute their operands themselves,
            and whether a product of scores runs inside its softmax (`memory.products`).
        keeps_rounded: Whether a softmax that is rounded for several products has a buffer.
    """

    by_traffic: bool
    into_products: bool = False
    keeps_rounded: bool = False


def instructions(program: LocalProgram, rules: FusionRules) -> Instructions:
    """Return what runs after fusion, and on which buffers.

    Args:
        program: The program of one device.
        rules: Those of the compiler.
    """
    made = _Fusion(program, rules)
    made.assemble()
    over_input, after = made.donations()
    return Instructions(
        steps=tuple(
            LocalInstruction(
                value=v,
                reads=made.sources[v],
                may_read=made.repeated_in[v],
                defines=defines,
                may_reuse=reuse,
                after=before,
            )
            for v, defines, reuse, before in zip(
                made.value, made.defines, made.may_reuse, after, strict=True
            )
        ),
        results=tuple(
            dict.fromkeys(
                made.root[v]
                for v in program.outputs
                if program.values[v].kind != InstructionKind.INPUT
            )
        ),
        over_input=frozenset(over_input | program.in_loop),
        num_values=sum(made.has_buffer),
        is_body=program.is_body,
    )


class Buffers(NamedTuple):
    """For each value what fusion makes of it.

    Attributes:
        has: Whether it has a buffer.
        is_repeated: Whether readers that could compute it do so although it has a buffer.
    """

    has: list[bool]
    is_repeated: list[bool]


def buffers_of(program: LocalProgram, users: list[list[int]], rules: FusionRules) -> Buffers:
    """Return what fusion makes of each value.

    Args:
        program: The program of one device.
        users: For each value its readers.
        rules: Those of the compiler.
    """
    values, leaving = program.values, frozenset(program.outputs) | program.effects
    rounded = rounded_for_products(values, users) if rules.into_products else frozenset[int]()
    epilogue = epilogues(values, users, leaving, rounded) if rules.into_products else {}
    narrowest = narrowest_bytes(values) if rules.into_products else ()
    ends = frozenset(epilogue.values()) - epilogue.keys()
    read_bytes = _read_bytes(values, ends) if rules.by_traffic else ()

    def is_kept(v: int, num_readers: int) -> bool:
        if not rules.by_traffic:
            return values[v].is_expensive
        if rules.into_products and not is_narrower(narrowest[v], values[v].num_bytes):
            return False
        again = num_readers * read_bytes[v]
        num_bytes = values[v].num_bytes * (1 + values[v].is_narrow)
        stored = read_bytes[v] + (1 + num_readers) * num_bytes
        # A TPU keeps what saves anything, as the gradient of scores, others what saves a 64th.
        return again > stored * (1 if rules.into_products else MUCH)

    def is_unary(v: int) -> bool:
        return sum(_is_wide(values, u, v) for u in set(values[v].inputs)) <= 1

    def is_read_late(v: int, readers: AbstractSet[int]) -> bool:
        # A reader needs what another one makes, as the backward pass does: XLA repeats only what
        # reads one array there.  Source: InstructionFusion::ComputeGloballyUnfusible.
        return not is_unary(v) and any(later[r] >> u & 1 for r in readers for u in readers)

    has, is_repeated = [False] * len(values), [False] * len(values)
    # Values with a buffer that follow from each value, as bits.
    later = [0] * len(values)
    # The instructions that compute a value; none if it is never read.
    roots: list[frozenset[int]] = [frozenset()] * len(values)
    for v in range(len(values) - 1, -1, -1):
        value = values[v]
        live = [u for u in users[v] if roots[u]]
        if not live and v not in leaving:
            continue
        found = roots[live[0]] if live else frozenset[int]()
        if len(live) > 1:
            found = found.union(*(roots[u] for u in live[1:]))
        has[v] = v not in epilogue and (
            value.kind not in _FUSED
            or v in ends
            or v in leaving
            or (len(found) > 1 and is_kept(v, len(found)))
            or (len(found) > 1 and v in rounded and rules.keeps_rounded)
            or (len(found) > 1 and not rules.by_traffic and is_read_late(v, found))
            or not all(_takes_in(values[u], len(users[v]), rules) for u in live)
            or (rules.by_traffic and any(_is_view(values, u) and has[u] for u in live))
        )
        if value.kind in _FUSED and has[v] and not rules.by_traffic:
            is_repeated[v] = len(users[v]) > 1 and not value.is_expensive and is_unary(v)
        for u in () if rules.by_traffic else live:
            later[v] |= later[u] | has[u] << u
        roots[v] = frozenset((v,)) if has[v] else found
        if is_repeated[v]:
            roots[v] |= found
    return Buffers(has, is_repeated)


def _read_bytes(values: Sequence[LocalValue], stored: AbstractSet[int]) -> list[int]:
    """Return bytes that must be read to compute each value, where all that is fusible is fused."""
    sources: list[frozenset[int]] = []
    found: list[int] = []
    for v, value in enumerate(values):
        if value.kind in _FUSED and v not in stored:
            sources.append(frozenset[int]().union(*(sources[u] for u in value.inputs)))
        else:
            sources.append(frozenset((v,)))
        found.append(sum(values[u].num_bytes for u in sources[v]))
    return found


def _is_wide(values: Sequence[LocalValue], operand: int, v: int) -> bool:
    """Return whether an operand has as many bytes as a value, and is not just spread out.

    Source: XLA InstructionFusion::EffectivelyAtMostUnary leaves out broadcasts, iotas and scalars.
    """
    size, made = values[v].num_bytes, values[operand]
    if made.num_bytes < size:
        return False
    if made.kind == InstructionKind.FUSIBLE and len(made.inputs) <= 1:
        return any(values[u].num_bytes >= made.num_bytes for u in made.inputs)
    return True


def _is_view(values: Sequence[LocalValue], v: int) -> bool:
    return values[v].kind == InstructionKind.VIEW


def _takes_in(reader: LocalValue, num_readers: int, rules: FusionRules) -> bool:
    """Return whether a reader computes an operand by itself."""
    kind = reader.kind
    if kind == InstructionKind.REDUCE and rules.by_traffic:
        return True
    if reader.is_product:
        return rules.into_products
    return kind in _FUSED or (
        kind in (InstructionKind.REDUCE, InstructionKind.INITIAL) and num_readers == 1
    )


class _Fusion:
    """Instructions while they are put together."""

    def __init__(self, program: LocalProgram, rules: FusionRules) -> None:
        self.program, self.values, self.rules = program, program.values, rules
        count = len(self.values)
        self.users: list[list[int]] = [[] for _ in range(count)]
        for v, value in enumerate(self.values):
            for u in dict.fromkeys(value.inputs):
                self.users[u].append(v)
        self.has_buffer, self.is_repeated = buffers_of(program, self.users, rules)
        self.root = list(range(count))
        # Buffers that a value without one is computed from.
        self.sources: list[tuple[int, ...]] = [()] * count
        # Buffers of values that it computes again.
        self.repeated_in: list[tuple[int, ...]] = [()] * count
        self.position: dict[int, int] = {}
        # Instructions by what they read.
        self.siblings: dict[frozenset[int], int] = {}
        self.value: list[int] = []
        self.defines: list[tuple[int, ...]] = []
        self.may_reuse: list[tuple[int, ...]] = []

    def buffer(self, reader: int, v: int) -> int | None:
        """Return the buffer in which a reader finds a value; None if it computes the value."""
        if self.values[v].kind == InstructionKind.INPUT:
            return v
        is_computed = self.is_repeated[v] and self.values[reader].kind in _FUSED
        return self.root[v] if self.has_buffer[v] and not is_computed else None

    def shared_root(self, v: int) -> int | None:
        """Return the buffer in which a value already lies, if it needs none of its own."""
        value = self.values[v]
        if value.kind not in _SHARING:
            return None
        source = value.inputs[0]
        buffer = self.buffer(v, source)
        if value.kind != InstructionKind.INITIAL or buffer is None:
            return buffer
        # The loop may write over a value that nothing else reads.
        is_own = buffer == source and self.values[source].kind != InstructionKind.INPUT
        is_read_once = len(self.users[source]) == 1 and source not in self.program.outputs
        return source if is_own and is_read_once else None

    def assemble(self) -> None:
        """Make an instruction of each value with a buffer of its own."""
        for v, value in enumerate(self.values):
            if value.kind == InstructionKind.INPUT:
                continue
            if value.kind == InstructionKind.PART:
                loop = self.position[value.inputs[0]]
                self.defines[loop] = (*self.defines[loop], v)
                continue
            self.read(v, value)
            if not self.has_buffer[v]:
                continue
            shared = self.shared_root(v)
            if shared is not None:
                self.root[v] = shared
                continue
            sibling = self.sibling(v)
            if sibling is not None:
                self.position[v] = sibling
                self.defines[sibling] = (*self.defines[sibling], v)
                continue
            self.position[v] = len(self.value)
            self.value.append(v)
            self.defines.append(() if v in self.program.loops else (v,))
            self.may_reuse.append(self.reusable(v))

    def sibling(self, v: int) -> int | None:
        """Return the instruction that makes another value as long from the same buffers, if any."""
        value = self.values[v]
        is_alone = value.kind not in _FUSED or v in self.program.aliases
        if not self.rules.by_traffic or is_alone or not self.sources[v]:
            return None
        key = frozenset(self.sources[v])
        found = self.siblings.setdefault(key, len(self.value))
        if found == len(self.value):
            return None
        return found if self.values[self.value[found]].num_bytes == value.num_bytes else None

    def read(self, v: int, value: LocalValue) -> None:
        """Find the buffers from which a value is computed."""
        found: dict[int, None] = {}
        again: dict[int, None] = {}
        for u in value.inputs:
            buffer = self.buffer(v, u)
            if buffer is not None:
                found[buffer] = None
                if buffer != u:
                    # A barrier that it has passed must have run, too.
                    found.update(dict.fromkeys(self.sources[u]))
                continue
            found.update(dict.fromkeys(self.sources[u]))
            again.update(dict.fromkeys(self.repeated_in[u]))
            if self.has_buffer[u]:
                again[self.root[u]] = None
        self.sources[v], self.repeated_in[v] = tuple(found), tuple(again)

    def reusable(self, v: int) -> tuple[int, ...]:
        """Return the buffers over which the result of an instruction may lie."""
        value = self.values[v]
        if v in self.program.loops:
            # The loop works in the buffers of its initial carries.
            carries = (u for u in value.inputs if self.values[u].kind == InstructionKind.INITIAL)
            return tuple(self.root[u] for u in carries)
        if value.is_in_place:
            first = self.buffer(v, value.inputs[0])
            return self.sources[value.inputs[0]] if first is None else (first,)
        if value.kind not in (InstructionKind.FUSIBLE, InstructionKind.INITIAL) or value.is_moving:
            return ()
        blocked = self.read_otherwise(v)
        found = (b for b in self.sources[v] if b not in blocked)
        if not self.rules.by_traffic:
            return tuple(found)
        # Products make a tuple of a result and a workspace; what reads part of a tuple does not
        # write over it.  Source: XLA heap_simulator.cc (IsUserOf).
        return tuple(b for b in found if self.values[b].kind == InstructionKind.FUSIBLE)

    def may_overwrite(self, i: int, argument: int) -> bool:
        """Return whether an instruction may write over an argument, which it may read itself.

        XLA looks through a view of an argument.
        """
        v = self.value[i]
        if argument not in self.sources[v] or argument in self.may_reuse[i]:
            return True
        if self.values[v].kind in _FUSED and not self.values[v].is_moving:
            return argument not in self.read_otherwise(v, with_views=False)
        return v in self.program.branches

    def read_otherwise(self, v: int, *, with_views: bool = True) -> set[int]:
        """Return buffers of which an instruction reads other elements than it writes.

        Args:
            v: What it makes.
            with_views: Whether a view counts: where the shapes have to be equal.

        Source: XLA hlo_dataflow_analysis.cc (CanShareOperandBufferWithUser).
        """
        found: set[int] = set()
        seen, stack = {(v, False)}, [(v, False)]
        while stack:
            reader, is_moved = stack.pop()
            value = self.values[reader]
            is_view = with_views and value.kind == InstructionKind.VIEW
            is_moved = is_moved or is_view or value.is_moving or value.is_product
            for u in value.inputs:
                buffer = self.buffer(reader, u)
                if buffer is None:
                    if (u, is_moved) not in seen:
                        seen.add((u, is_moved))
                        stack.append((u, is_moved))
                elif is_moved or buffer != u or self.values[u].is_reshaped:
                    found.add(buffer)
        return found

    def donations(self) -> tuple[set[int], list[tuple[int, ...]]]:
        """Return results that overwrite an argument, and what must have run before each.

        What reads the argument runs first.  If one of its readers needs the result, or the result
        cannot be made over the argument, XLA makes it elsewhere and copies it in the end.

        Source: XLA copy_insertion.cc.
        """
        readers: dict[int, list[int]] = {}
        for i, v in enumerate(self.value):
            for b in self.sources[v]:
                readers.setdefault(b, []).append(i)
        followers = [{i for b in made for i in readers.get(b, ())} for made in self.defines]
        over_input: set[int] = set()
        after: list[dict[int, None]] = [{} for _ in self.value]
        for v, argument in self.program.aliases.items():
            value = self.values[v]
            if value.kind == InstructionKind.INPUT or self.root[v] != v:
                continue
            maker = self.position[value.inputs[0] if value.kind == InstructionKind.PART else v]
            first = [i for i in readers.get(argument, ()) if i != maker]
            is_free = not first or _reachable(maker, followers).isdisjoint(first)
            if not (is_free and self.may_overwrite(maker, argument)):
                continue
            over_input.add(v)
            after[maker] |= dict.fromkeys(first)
            for i in first:
                followers[i].add(maker)
        return over_input, [tuple(found) for found in after]


def _reachable(start: int, followers: Sequence[AbstractSet[int]]) -> set[int]:
    """Return what must run after an instruction."""
    found: set[int] = set()
    todo = [start]
    while todo:
        new = followers[todo.pop()] - found - {start}
        found |= new
        todo += new
    return found
