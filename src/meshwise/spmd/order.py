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
from operator import and_, or_
from typing import Any

import jax.numpy as jnp
from jax import lax

from meshwise.cluster.mesh import LogicalMesh
from meshwise.graph.graph import Operator
from meshwise.plan.collectives import collectives
from meshwise.plan.decision import OperatorDecision
from meshwise.trace.program import Node


class Order:
    """What each value of one level of a program waits for; lives while it is traced.

    Events are collectives and loops, counted from 0; sets of events are bits of an integer.
    """

    def __init__(self, *, is_kept: bool) -> None:
        """Args: whether to add what is missing; if not, nothing is done at all."""
        self.is_kept = is_kept
        self._results: list[Any] = []
        self._loops = 0
        # By id; values are kept alive, so that no id comes twice.
        self._before: dict[int, tuple[Any, int]] = {}

    def of(self, values: Sequence[Any]) -> int:
        """The events that are over once all of these values are there."""
        sets = (self._before.get(id(value), (None, 0))[1] for value in values)
        return functools.reduce(or_, sets, 0)

    def derive(self, results: Sequence[Any], operands: Sequence[Any]) -> None:
        """Results of an operator wait for what its operands wait for."""
        if self.is_kept:
            self._note(results, self.of(operands))

    def communicate(self, collective: Callable[[Any], Any], value: Any) -> Any:
        """Run a collective on a value, after all loops so far."""
        if not self.is_kept:
            return collective(value)
        held = self._after(value, self._loops & ~self.of([value]))
        result = collective(held)
        self._happen([result], self.of([held]))
        return result

    def before_loop(self, operands: Sequence[Any], read: Sequence[int]) -> list[Any]:
        """Operands of a loop, one of which waits for all events so far.

        Args:
            operands: Of the loop.
            read: Positions of those that it reads in any case.
        """
        missing = ((1 << len(self._results)) - 1) & ~self.of(operands)
        usable = [i for i in read if _is_number(operands[i])]
        if not self.is_kept or not missing or not usable:
            return list(operands)
        chosen = min(usable, key=lambda i: _burden(operands[i]))
        out = list(operands)
        out[chosen] = self._after(out[chosen], missing)
        return out

    def after_loop(self, written: Sequence[Any]) -> None:
        """A loop is over once one of the results that it writes is there."""
        if self.is_kept and any(_is_number(value) for value in written):
            self._loops |= 1 << len(self._results)
            self._happen(written, self.of(written))

    def _happen(self, results: Sequence[Any], before: int) -> None:
        """An event, which is over once any of its results is there."""
        numbers = [value for value in results if _is_number(value)]
        event = 1 << len(self._results) if numbers else 0
        self._results += sorted(numbers, key=_burden)[:1]
        self._note(results, before | event)

    def _note(self, values: Sequence[Any], events: int) -> None:
        for value in values:
            self._before[id(value)] = (value, events)

    def _after(self, value: Any, events: int) -> Any:
        """The value, once these events are over."""
        if not events or not _is_number(value):
            return value
        waited = [r for i, r in enumerate(self._results) if events >> i & 1]
        is_over = functools.reduce(and_, [_holds(result) for result in waited])
        held = jnp.where(is_over, value, _changed(value))
        self._note([held], self.of([value, *waited]) | events)
        return held


def _is_number(value: Any) -> bool:
    """Whether a value has an element that can be compared."""
    kinds = (jnp.number, jnp.bool_)
    return value.size > 0 and any(jnp.issubdtype(value.dtype, kind) for kind in kinds)


def _burden(value: Any) -> tuple[bool, int]:
    """The less the better to wait or to be waited for.

    An integer may be the counter of a loop: what starts late has no known number of trips, and
    of its end XLA knows the value.
    """
    return not jnp.issubdtype(value.dtype, jnp.floating), value.size


def _changed(value: Any) -> Any:
    """Another value, so that XLA does not find both sides of a `where` equal."""
    return ~value if value.dtype == jnp.bool_ else value + jnp.ones((), value.dtype)


def _holds(value: Any) -> Any:
    """True, read from an element of a value in a way that XLA does not see through."""
    first = lax.slice(value, (0,) * value.ndim, (1,) * value.ndim).reshape(())
    number = first.real if jnp.iscomplexobj(first) else first
    number = number.astype(jnp.promote_types(number.dtype, jnp.float32))
    return (number < 0) | (number >= 0) | (number != number)


def communicates(operator: Operator, chosen: OperatorDecision, mesh: LogicalMesh) -> bool:
    """Whether the bodies of an operator send anything."""
    bodies = zip(operator.bodies, chosen.bodies, strict=True)
    return any(collectives(graph, decision, mesh) for graph, decision in bodies)


def decides(node: Node) -> list[int]:
    """Operands that a structured equation reads in any case."""
    structure = node.structure
    assert structure is not None
    if structure.kind == "cond":
        return [0]
    constant = set(_unchanged(node))
    read = [k for k, j in structure.carries if j not in constant]
    return read or sorted(structure.stacked_operands)


def changes(node: Node) -> list[int]:
    """Results of a structured equation that are not an operand as it was."""
    constant = set(_unchanged(node))
    return [j for j in range(len(node.outputs)) if j not in constant]


def _unchanged(node: Node) -> list[int]:
    """Results that every body passes on."""
    structure = node.structure
    assert structure is not None

    def passes(k: int, j: int) -> bool:
        for part, body in zip(structure.parts, node.bodies, strict=True):
            if j in part.results:
                given = body.inputs[part.operands.index(k)]
                return body.outputs[part.results.index(j)] == given
        return False

    return [j for k, j in structure.carries if passes(k, j)]
