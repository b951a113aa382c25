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

from meshwise.runtime.hlo.collectives import collective_kind
from meshwise.runtime.hlo.loops import called_names
from meshwise.runtime.hlo.module import Computation, HloInstruction, Module


def overlapping(module: Module) -> tuple[str, ...]:
    """Return the names of collectives, and of loops with such, that do not wait for a loop.

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
        """Return whether a computation, or one that it calls, has a collective."""
        if name not in self._known:
            self._known[name] = any(
                collective_kind(instruction) is not None or self._calls_one(instruction)
                for instruction in self.module.computations[name].instructions
            )
        return self._known[name]

    def _calls_one(self, instruction: HloInstruction) -> bool:
        return any(self.communicates(name) for name in called_names(instruction))

    def early(self, computation: Computation) -> list[str]:
        """Return the names in one computation."""
        num_loops = 0
        waits: dict[str, int] = {}
        # What has ended before the last collective or loop so far began: none begins before it.
        ended = 0
        found: list[str] = []
        for now in computation.instructions:
            before = functools.reduce(operator.or_, (waits.get(n, 0) for n in now.operands), 0)
            if now.opcode == "get-tuple-element":
                name = self._source(computation, now)
                before = waits.get(name, 0) if name is not None else before
            is_loop = self._calls_one(now)
            if is_loop or collective_kind(now) is not None:
                before |= ended
                ended = before
                if before != (1 << num_loops) - 1:
                    found.append(now.name)
            if is_loop:
                before |= 1 << num_loops
                num_loops += 1
            waits[now.name] = before
        return found

    def _source(self, computation: Computation, element: HloInstruction) -> str | None:
        """Return the value that an element of a tuple is, if a loop or branch only passes it on."""
        source = computation.by_name[element.operands[0]]
        index = int(element.attribute("index") or 0)
        if source.opcode == "tuple":
            return source.operands[index]
        if source.opcode == "while":
            (body,) = source.computation_names("body")
            given = source.operands[0] if self._passed(body, index) == index else None
            return self._operand(computation, given, index)
        if source.opcode == "conditional":
            taken = {
                self._operand(computation, given, self._passed(branch, index))
                for branch, given in zip(called_names(source), source.operands[1:], strict=True)
            }
            return taken.pop() if len(taken) == 1 else None
        return None

    def _operand(
        self, computation: Computation, given: str | None, index: int | None
    ) -> str | None:
        """Return element `index` of a tuple that is given to a loop or branch."""
        if given is None or index is None:
            return None
        source = computation.by_name[given]
        return source.operands[index] if source.opcode == "tuple" else None

    def _passed(self, name: str, index: int) -> int | None:
        """Return the element of its parameter that element `index` of a computation's result is."""
        body = self.module.computations[name]
        if body.root.opcode != "tuple":
            return None
        made = body.by_name[body.root.operands[index]]
        while True:
            if made.opcode == "bitcast":
                made = body.by_name[made.operands[0]]
                continue
            if made.opcode != "get-tuple-element":
                return None
            if body.by_name[made.operands[0]].opcode == "parameter":
                return int(made.attribute("index") or 0)
            inner = self._source(body, made)
            if inner is None:
                return None
            made = body.by_name[inner]
