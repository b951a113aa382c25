"""What an instruction calls, and the trip counts of loops.

XLA writes the count where it proved one; else it is read from an induction variable with constant
start, step and limit.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshwise.graph.turns import expected_turns
from meshwise.runtime.hlo.module import Computation, HloInstruction, Module

_CALLS = {
    "while": ("body", "condition"),
    "conditional": ("branch_computations", "true_computation", "false_computation"),
    "call": ("calls", "to_apply"),
    "custom-call": ("calls", "called_computations"),
    # Their `calls` repeats the one of async-start.
    "async-done": (),
    "async-update": (),
}


def called_names(instruction: HloInstruction) -> tuple[str, ...]:
    """Return the names of the computations that an instruction runs.

    Of a `while` the body and the condition, of a conditional the branches.

    Args:
        instruction: The instruction.
    """
    return tuple(
        name
        for attribute in _CALLS.get(instruction.opcode, ("calls",))
        for name in instruction.computation_names(attribute)
    )


def trip_count(module: Module, computation: Computation, loop: HloInstruction) -> int | None:
    """Return the trips of a `while` instruction; None if the text does not tell.

    XLA writes `known_trip_count` where it proved one; else the count follows from an induction
    variable with constant start, step and limit.  Of a loop of ours whose count is known only when
    the step runs, the name says what to expect.

    Args:
        module: The program.
        computation: Where the loop stands.
        loop: The loop.
    """
    known = loop.backend_config.get("known_trip_count")
    if isinstance(known, dict) and "n" in known:
        return int(known["n"])
    trips = _induction_trips(module, computation, loop)
    return expected_turns(loop.op_name) if trips is None else trips


@dataclass(frozen=True, slots=True)
class _Value:
    """A scalar inside a loop: element `index` of the carry plus `offset`, or the int `offset`."""

    index: int | None
    offset: int


def _induction_trips(module: Module, computation: Computation, loop: HloInstruction) -> int | None:
    (condition,) = loop.computation_names("condition")
    (body,) = loop.computation_names("body")
    start = computation.by_name.get(loop.operands[0])
    if start is None or start.opcode != "tuple":
        return None

    def initial(index: int) -> int | None:
        value = _scalar(module, computation, start.operands[index], {})
        return value.offset if value is not None and value.index is None else None

    test = _comparison(module, module.computations[condition])
    if test is None:
        return None
    direction, left, right = test
    if left.index is None and right.index is not None:
        left, right = right, left
        direction = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE"}.get(direction, direction)
    if left.index is None:
        return None
    step = _step(module, module.computations[body], left.index)
    limit = right.offset
    if right.index is not None:
        bound = initial(right.index)
        if bound is None or _step(module, module.computations[body], right.index) != 0:
            return None
        limit += bound
    first = initial(left.index)
    if step is None or first is None:
        return None
    return _count(direction, first + left.offset, limit, step)


def _count(direction: str, first: int, limit: int, step: int) -> int | None:
    if direction in ("GT", "GE"):
        direction = {"GT": "LT", "GE": "LE"}[direction]
        first, limit, step = -first, -limit, -step
    if step <= 0:
        return None
    if direction == "LE":
        limit += 1
    elif direction == "NE":
        if limit < first or (limit - first) % step:
            return None
    elif direction != "LT":
        return None
    return max(0, -(-(limit - first) // step))


def _step(module: Module, body: Computation, index: int) -> int | None:
    if body.root.opcode != "tuple":
        return None
    value = _scalar(module, body, body.root.operands[index], {})
    return value.offset if value is not None and value.index == index else None


def _comparison(module: Module, condition: Computation) -> tuple[str, _Value, _Value] | None:
    computation, root, bound = condition, condition.root, {}
    while root.opcode in ("fusion", "call"):
        names = called_names(root)
        if len(names) != 1:
            return None
        bound = _bind(module, computation, root, bound)
        computation = module.computations[names[0]]
        root = computation.root
    if root.opcode != "compare":
        return None
    values = [_scalar(module, computation, name, bound) for name in root.operands]
    if values[0] is None or values[1] is None:
        return None
    return root.attribute("direction") or "", values[0], values[1]


def _bind(
    module: Module, computation: Computation, call: HloInstruction, bound: dict[int, _Value | None]
) -> dict[int, _Value | None]:
    return {
        number: _scalar(module, computation, name, bound)
        for number, name in enumerate(call.operands)
    }


def _scalar(
    module: Module, computation: Computation, name: str, bound: dict[int, _Value | None]
) -> _Value | None:
    """Return the value of a scalar; `bound` holds the values of the parameters inside a fusion."""
    instruction = computation.by_name.get(name)
    if instruction is None:
        return None
    if instruction.opcode == "constant":
        text = instruction.literal.strip(" {}")
        return _Value(None, int(text)) if text.lstrip("-").isdigit() else None
    if instruction.opcode == "parameter":
        return bound.get(int(instruction.literal))
    if instruction.opcode in ("copy", "bitcast", "convert", "reshape"):
        return _scalar(module, computation, instruction.operands[0], bound)
    if instruction.opcode == "get-tuple-element":
        source = computation.by_name.get(instruction.operands[0])
        if source is None or source.opcode != "parameter" or bound:
            return None
        return _Value(int(instruction.attribute("index") or 0), 0)
    if instruction.opcode in ("add", "subtract"):
        left, right = (_scalar(module, computation, n, bound) for n in instruction.operands)
        return _sum(left, right, -1 if instruction.opcode == "subtract" else 1)
    if instruction.opcode in ("fusion", "call"):
        names = called_names(instruction)
        if len(names) != 1:
            return None
        inner = module.computations[names[0]]
        return _scalar(
            module, inner, inner.root.name, _bind(module, computation, instruction, bound)
        )
    return None


def _sum(left: _Value | None, right: _Value | None, sign: int) -> _Value | None:
    if left is None or right is None:
        return None
    if right.index is None:
        return _Value(left.index, left.offset + sign * right.offset)
    if left.index is None and sign == 1:
        return _Value(right.index, left.offset + right.offset)
    return None
