"""How often each instruction of a module runs: loops, calls, fusions, conditionals.

A conditional runs one branch, which only the data decide: every branch counts once, as in a plan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from meshwise.errors import ProgramError
from meshwise.runtime.hlo.loops import called_names, trip_count
from meshwise.runtime.hlo.module import Computation, HloInstruction, Module

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Executed(Generic[T]):
    """What was read of one instruction, and how often a run of the module executes it.

    Attributes:
        value: What was read.
        count: Executions.
    """

    value: T
    count: int


def executed(
    module: Module,
    read: Callable[[Computation, HloInstruction], T | None],
    *,
    unknown_trip_count: int | None = None,
) -> tuple[Executed[T], ...]:
    """Return what one run of a module executes, callees at their call sites.

    Args:
        module: The program.
        read: Returns what is asked of an instruction; None for one that does not matter. What the
            instruction calls is read by itself.
        unknown_trip_count: Trips of loops whose count the text does not tell.

    Raises:
        ProgramError: An instruction that matters is in a loop whose trip count the text does not
            tell, and `unknown_trip_count` is None.
    """
    memo: dict[str, tuple[Executed[T], ...]] = {}

    def visit(name: str) -> tuple[Executed[T], ...]:
        if name not in memo:
            computation = module.computations.get(name)
            if computation is None:
                raise ProgramError(f"HLO text: computation {name!r} is called but not defined")
            found: list[Executed[T]] = []
            for instruction in computation.instructions:
                value = read(computation, instruction)
                if value is not None:
                    found.append(Executed(value=value, count=1))
                found += callees(computation, instruction)
            memo[name] = tuple(found)
        return memo[name]

    def callees(computation: Computation, instruction: HloInstruction) -> list[Executed[T]]:
        if instruction.opcode != "while":
            return [item for name in called_names(instruction) for item in visit(name)]
        body, condition = map(visit, called_names(instruction))
        if not body and not condition:
            return []
        trips = trip_count(module, computation, instruction)
        trips = unknown_trip_count if trips is None else trips
        if trips is None:
            raise ProgramError(
                f"HLO text: loop {instruction.name!r} ({instruction.op_name}) runs an unknown "
                "number of times; pass unknown_trip_count to assume one"
            )
        return _times(body, trips) + _times(condition, trips + 1)

    return visit(module.entry)


def _times(items: tuple[Executed[T], ...], factor: int) -> list[Executed[T]]:
    return [Executed(value=item.value, count=item.count * factor) for item in items if factor]
