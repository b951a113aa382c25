"""How often a `while` runs, where its program tells: a counter from a constant to a constant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshwise.graph.structure import Structure
from meshwise.trace.program import Node, Program

# What holds as long as the loop goes on, with the sides exchanged.
_EXCHANGED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "ne": "ne"}


def known_trips(
    predicate: Program, body: Program, structure: Structure, constants: Sequence[Any]
) -> int | None:
    """Trips of a `while`, or None if they depend on data.

    Known are loops of which the predicate compares an integer carry with a constant, and the body
    adds a constant to it; the carry starts with a constant.

    Args:
        predicate: Its program.
        body: The program of one iteration.
        structure: How both are bound to the operands.
        constants: For each operand its value if it is known at trace time, else None.
    """
    test = _producer(predicate, predicate.outputs[0])
    if test is None or test.name not in _EXCHANGED:
        return None
    enters = dict(zip(predicate.inputs, structure.parts[0].operands, strict=True))

    def limit_of(ident: int) -> int | None:
        if ident in enters and structure.carried_result(enters[ident]) is None:
            return _integer(constants[enters[ident]])
        return _integer(predicate.constants.get(ident))

    kind, (left, right) = test.name, test.inputs
    limit = limit_of(right)
    if limit is None:
        kind, left, limit = _EXCHANGED[kind], right, limit_of(left)
    if limit is None or left not in enters:
        return None
    counter = enters[left]
    result = structure.carried_result(counter)
    start = _integer(constants[counter])
    if result is None or start is None:
        return None
    step = _step(body, structure, counter, result, constants)
    aval = predicate.avals[left]
    trips = None if step is None else _count(kind, start, limit, step)
    if trips is None or step is None or not _holds(start + trips * step, aval.dtype):
        return None
    return trips


def _producer(program: Program, ident: int) -> Node | None:
    return next((node for node in program.nodes if ident in node.outputs), None)


def _integer(value: Any) -> int | None:
    """Return a scalar integer that is known at trace time."""
    if value is None:
        return None
    array = np.asarray(value)
    if array.shape != () or not np.issubdtype(array.dtype, np.integer):
        return None
    return int(array)


def _holds(value: int, dtype: Any) -> bool:
    info = np.iinfo(dtype)
    return int(info.min) <= value <= int(info.max)


def _step(
    body: Program, structure: Structure, counter: int, result: int, constants: Sequence[Any]
) -> int | None:
    """Return what one iteration adds to the counter; None if it does anything else to it."""
    enters = dict(zip(body.inputs, structure.parts[1].operands, strict=True))
    after = body.outputs[structure.parts[1].results.index(result)]
    node = _producer(body, after)
    if node is None or node.name not in ("add", "sub"):
        return None

    def constant(ident: int) -> int | None:
        if ident in enters and structure.carried_result(enters[ident]) is None:
            return _integer(constants[enters[ident]])
        return _integer(body.constants.get(ident))

    left, right = node.inputs
    if node.name == "add" and enters.get(right) == counter:
        left, right = right, left
    step = constant(right)
    if step is None or enters.get(left) != counter:
        return None
    return step if node.name == "add" else -step


def _count(kind: str, start: int, limit: int, step: int) -> int | None:
    """Trips of `while start kind limit: start += step`; None if it never ends."""
    if kind in ("gt", "ge"):
        kind, start, limit, step = _EXCHANGED[kind], -start, -limit, -step
    if kind == "le":
        kind, limit = "lt", limit + 1
    if kind == "ne":
        if start == limit:
            return 0
        if step == 0 or (limit - start) % step or (limit - start) // step < 0:
            return None
        return (limit - start) // step
    if start >= limit:
        return 0
    return None if step <= 0 else -(-(limit - start) // step)
