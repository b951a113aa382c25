"""Collectives that XLA:CPU may start while a loop with collectives before them still runs.

Instructions of a computation run as soon as what they read is there; only collectives among each
other keep the order of the schedule.  A loop counts as started, not as done, for those after it.
Devices then take the collectives in different orders: they wait for each other for ever, or, if
groups and channels agree, take each other's data.

Source: XLA cpu/runtime/thunk_executor.cc, execution_graph.cc (edges of kind `scheduling`); seen on
XLA:CPU, JAX 0.10.2.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence

from meshwise.runtime.hlo_collectives import collective_kind
from meshwise.runtime.hlo_loops import called_names
from meshwise.runtime.hlo_parse import Computation, Instruction, Module
from meshwise.runtime.hlo_walk import branch_names


def overlapping(module: Module) -> tuple[str, ...]:
    """Names of the collectives, and of loops with collectives, that do not wait for a loop.

    Args:
        module: A scheduled program; the order of its lines is that of execution.
    """
    reader = _Reader(module)
    return tuple(
        name for computation in module.computations.values() for name in reader.early(computation)
    )


class _Reader:
    def __init__(self, module: Module) -> None:
        self.module = module
        self._known: dict[str, bool] = {}

    def communicates(self, name: str) -> bool:
        """Whether a computation, or one that it calls, has a collective."""
        if name not in self._known:
            self._known[name] = any(
                collective_kind(instruction) is not None or self._calls_one(instruction)
                for instruction in self.module.computations[name].instructions
            )
        return self._known[name]

    def _calls_one(self, instruction: Instruction) -> bool:
        return any(self.communicates(name) for name in _callees(instruction))

    def early(self, computation: Computation) -> list[str]:
        """Names in one computation."""
        loops: list[Instruction] = []
        waits: dict[str, int] = {}
        found: list[str] = []
        for now in computation.instructions:
            before = functools.reduce(operator.or_, (waits.get(n, 0) for n in now.operands), 0)
            if now.opcode == "get-tuple-element":
                before = self._element(computation, now, waits)
            is_loop = self._calls_one(now)
            if (is_loop or collective_kind(now) is not None) and before != (1 << len(loops)) - 1:
                found.append(now.name)
            if is_loop:
                before |= 1 << len(loops)
                loops.append(now)
            waits[now.name] = before
        return found

    def _element(self, computation: Computation, now: Instruction, waits: dict[str, int]) -> int:
        """What an element of a tuple waits for; what a loop passes on does not wait for it."""
        source = computation.by_name[now.operands[0]]
        index = int(now.attribute("index") or 0)
        while source.opcode == "while" and _passes(self.module, source, index):
            source = computation.by_name[source.operands[0]]
            if source.opcode == "get-tuple-element":
                # A tuple of tuples: not told apart.
                break
        if source.opcode == "tuple":
            return waits.get(source.operands[index], 0)
        return waits.get(source.name, 0)


def _passes(module: Module, loop: Instruction, index: int) -> bool:
    """Whether a loop leaves an element of its tuple as it was."""
    (name,) = loop.computation_names("body")
    body = module.computations[name]
    if body.root.opcode != "tuple":
        return False
    made = body.by_name[body.root.operands[index]]
    while made.opcode == "bitcast":
        made = body.by_name[made.operands[0]]
    return (
        made.opcode == "get-tuple-element"
        and body.by_name[made.operands[0]].opcode == "parameter"
        and int(made.attribute("index") or 0) == index
    )


def _callees(instruction: Instruction) -> Sequence[str]:
    if instruction.opcode == "while":
        return (
            *instruction.computation_names("body"),
            *instruction.computation_names("condition"),
        )
    if instruction.opcode == "conditional":
        return branch_names(instruction)
    return called_names(instruction)
