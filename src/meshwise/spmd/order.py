"""Collectives and loops in one order on all devices, by data.

XLA:CPU starts what comes after a loop while the loop still runs, unless it reads what the loop
writes; a collective after a loop then races with those inside, and devices that take them in
different orders wait for each other for ever.  Here each collective reads all loops before it, and
each loop all collectives and loops before it, where the program itself does not say so: by a
`where` whose condition always holds, which XLA cannot know.

Source: seen on XLA:CPU, JAX 0.10.2 (docs/xla_cpu.md section 5).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import and_, or_

import jax.numpy as jnp
from jax import Array, lax

from meshwise.cluster.mesh import LogicalMesh
from meshwise.graph.graph import Operator
from meshwise.plan.counts.collectives import collectives
from meshwise.plan.decision import OperatorDecision
from meshwise.system.identity import Same
from meshwise.trace.program import Node

# What shows that a loop is over may be so much of what it writes.
_SHOWN_SHARE = 1 / 64


class Order:
    """What each value of one level of a program waits for; lives while it is traced.

    Events are collectives and loops, counted from 0; sets of events are bits of an integer.
    """

    def __init__(self, *, is_kept: bool, reads_all: bool = False) -> None:
        """Begin.

        Args:
            is_kept: Whether to add what is missing; if not, nothing is done at all.
            reads_all: Read all that a loop writes, let all that it reads wait, and count on no
                other order: XLA knows what becomes of a carry such as `s + 0`, takes it out of the
                loop, and a collective on it waits for nothing.
        """
        self.is_kept, self.reads_all = is_kept, reads_all
        # By event what shows that it is over, and whether that has been read.
        self._shown: list[list[Array]] = []
        self._over: dict[int, Array] = {}
        self._loops = 0
        self._before: dict[Same, int] = {}

    def of(self, values: Sequence[Array]) -> int:
        """Return the events that are over once all of these values are there."""
        sets = (self._before.get(Same(value), 0) for value in values)
        return functools.reduce(or_, sets, 0)

    def _known(self, values: Sequence[Array]) -> int:
        """Return the events for which a reader of values waits as the program is written."""
        return 0 if self.reads_all else self.of(values)

    def derive(self, results: Sequence[Array], operands: Sequence[Array]) -> None:
        """Results of an operator wait for what its operands wait for."""
        if self.is_kept:
            self._note(results, self.of(operands))

    def communicate(self, collective: Callable[[Array], Array], value: Array) -> Array:
        """Run a collective on a value, after all loops so far."""
        if not self.is_kept:
            return collective(value)
        held = self._after(value, self._loops & ~self._known([value]))
        result = collective(held)
        self._happen([result], self.of([held]))
        return result

    def before_loop(
        self, operands: Sequence[Array], read: Sequence[int], *, is_inlined: bool = False
    ) -> list[Array]:
        """Operands of a loop that waits for all events so far.

        Args:
            operands: The operands of the loop.
            read: Positions of those that it reads in any case.
            is_inlined: XLA takes the loop away: all of its operands wait, else one or two.
        """
        missing = ((1 << len(self._shown)) - 1) & ~self._known(operands)
        usable = [i for i in read if _is_number(operands[i])]
        if not self.is_kept or not missing or not usable:
            return list(operands)
        out = list(operands)
        usable.sort(key=lambda i: _burden(operands[i]))
        # XLA may fold away a single number, hardly a whole array.
        arrays = [i for i in usable if operands[i].size > 1]
        waits_all = is_inlined or self.reads_all
        for i in usable if waits_all else dict.fromkeys((usable[0], *arrays[:1])):
            out[i] = self._after(out[i], missing)
        return out

    def before_sending(self, operands: Sequence[Array]) -> list[Array]:
        """Operands of an operator that sends some of them: each waits for all events so far."""
        if not self.is_kept:
            return list(operands)
        so_far = (1 << len(self._shown)) - 1
        return [self._after(value, so_far & ~self._known([value])) for value in operands]

    def after_loop(self, written: Sequence[Array]) -> None:
        """A loop is over once the results that it writes are there."""
        if self.is_kept and any(_is_number(value) for value in written):
            self._loops |= 1 << len(self._shown)
            self._happen(written, self.of(written))

    def _happen(self, results: Sequence[Array], before: int) -> None:
        """An event, which is over once its results are there."""
        numbers = sorted(filter(_is_number, results), key=_burden)
        event = 0
        if numbers:
            event = 1 << len(self._shown)
            # Of several kinds only the best: XLA may know the others without the event.
            kind = _burden(numbers[0])[0]
            best = [value for value in numbers if _burden(value)[0] == kind]
            self._shown.append(numbers if self.reads_all else _small(best))
        self._note(results, before | event)

    def _note(self, values: Sequence[Array], events: int) -> None:
        for value in values:
            self._before[Same(value)] = events

    def _after(self, value: Array, events: int) -> Array:
        """Return the value, once these events are over."""
        if not events or not _is_number(value):
            return value
        waited = [i for i in range(len(self._shown)) if events >> i & 1]
        is_over = functools.reduce(and_, [self._is_over(i) for i in waited])
        held = jnp.where(is_over, value, _changed(value))
        after = self.of([value, *(shown for i in waited for shown in self._shown[i])])
        self._note([held], after | events)
        return held

    def _is_over(self, event: int) -> Array:
        if event not in self._over:
            self._over[event] = functools.reduce(and_, map(_holds, self._shown[event]))
        return self._over[event]


def _is_number(value: Array) -> bool:
    """Return whether a value has an element that can be compared."""
    kinds = (jnp.number, jnp.bool_)
    return value.size > 0 and any(jnp.issubdtype(value.dtype, kind) for kind in kinds)


def _burden(value: Array) -> tuple[int, int]:
    """Return the less the better to wait or to be waited for: by kind, then by size.

    A single integer may be the counter of a loop: what starts late has no known number of trips,
    and of its end XLA knows the value.
    """
    if jnp.issubdtype(value.dtype, jnp.inexact):
        return 0, value.size
    return (1 if value.size > 1 else 2), value.size


def _small(values: Sequence[Array]) -> list[Array]:
    """Return the smallest of values that are in order of size, with at least one whole array.

    They stay in memory until it is read that they are there.  XLA may fold away a single number,
    hardly a whole array.
    """
    sizes = list(accumulate(value.size for value in values))
    first = next((i for i, value in enumerate(values) if value.size > 1), len(values))
    return [
        value
        for i, (value, size) in enumerate(zip(values, sizes, strict=True))
        if i <= first or size <= _SHOWN_SHARE * sizes[-1]
    ]


def _changed(value: Array) -> Array:
    """Another value, so that XLA does not find both sides of a `where` equal."""
    return ~value if value.dtype == jnp.bool_ else value + jnp.ones((), value.dtype)


def _holds(value: Array) -> Array:
    """True, read from an element of a value in a way that XLA does not see through."""
    first = lax.slice(value, (0,) * value.ndim, (1,) * value.ndim).reshape(())
    number = first.real if jnp.iscomplexobj(first) else first
    # Types of 8 bits are not promoted by themselves; of integers XLA would know the answer.
    number = number.astype(jnp.float64 if number.dtype == jnp.float64 else jnp.float32)
    return (number < 0) | (number >= 0) | (number != number)


def communicates(operator: Operator, chosen: OperatorDecision, mesh: LogicalMesh) -> bool:
    """Return whether the bodies of an operator send anything."""
    bodies = zip(operator.bodies, chosen.bodies, strict=True)
    return any(collectives(graph, decision, mesh) for graph, decision in bodies)


def decides(node: Node, chosen: OperatorDecision) -> list[int]:
    """Operands that a structured equation reads in any case."""
    structure = node.structure
    assert structure is not None
    if structure.kind == "cond":
        return [0]
    if is_inlined(node):
        return list(range(len(node.inputs)))
    constant = set(passed_on(node, chosen))
    read = [k for k, j in structure.carries if j not in constant]
    return read or sorted(structure.stacked_operands) or list(range(len(node.inputs)))


def is_inlined(node: Node) -> bool:
    """Return whether XLA takes a loop away: one trip."""
    structure = node.structure
    assert structure is not None
    return structure.kind == "scan" and structure.length == 1


def passed_on(node: Node, chosen: OperatorDecision) -> dict[int, int]:
    """Results that every body passes on as they are, with the operand that they are.

    A body that moves what it passes on to another layout makes a value of its own.
    """
    structure = node.structure
    assert structure is not None
    found: dict[int, int] = {}
    for j in range(len(node.outputs)):
        if j in structure.stacked_results:
            continue
        sources = {_source(node, chosen, part, output) for part, output in structure.makers(j)}
        source = sources.pop() if len(sources) == 1 else None
        # A carry is passed on only where it comes from itself.
        if source is not None and structure.carry_of(j) in (None, source):
            found[j] = source
    return found


def _source(node: Node, chosen: OperatorDecision, part: int, output: int) -> int | None:
    """Return the operand that an output of a body is, without a move; None if it is made there."""
    body, decision = node.bodies[part], chosen.bodies[part]
    made, use = body.outputs[output], decision.outputs[output]
    if made not in body.inputs:
        return None
    place = body.inputs.index(made)
    if not decision.inputs[place] == use.via == use.layout:
        return None
    assert node.structure is not None
    return node.structure.parts[part].operands[place]
