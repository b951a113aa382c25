"""How often each instruction of a module runs: loops, calls, fusions, conditionals.

A conditional runs one branch, which only the data decide: every branch counts once, as in a plan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from meshwise.errors import ProgramError
from meshwise.runtime.hlo_loops import called_names, trip_count
from meshwise.runtime.hlo_parse import Computation, HloInstruction, Module


@dataclass(frozen=True, slots=True, kw_only=True)
class Executed:
    """One instruction, its computation, and how often a run of the module executes it."""

    computation: Computation
    instruction: HloInstruction
    count: int


def executed(
    module: Module,
    weigh: Callable[[Computation, HloInstruction], float],
    *,
    unknown_trip_count: int | None = None,
) -> tuple[Executed, ...]:
    """Instructions of positive weight that one run of the module executes.

    Args:
        module: The program.
        weigh: Weight of one execution of an instruction; what it calls is weighed by itself.
        unknown_trip_count: Trips of loops whose count the text does not tell.

    Returns:
        Callees stand at their call site; one record per instruction and call site.

    Raises:
        ProgramError: A weighed instruction is in a loop whose trip count the text does not tell,
            and `unknown_trip_count` is None.
    """
    memo: dict[str, tuple[Executed, ...]] = {}

    def visit(name: str) -> tuple[Executed, ...]:
        if name not in memo:
            computation = module.computations.get(name)
            if computation is None:
                raise ProgramError(f"HLO text: computation {name!r} is called but not defined")
            found: list[Executed] = []
            for instruction in computation.instructions:
                if weigh(computation, instruction) > 0:
                    found.append(
                        Executed(computation=computation, instruction=instruction, count=1)
                    )
                found += callees(computation, instruction)
            memo[name] = tuple(found)
        return memo[name]

    def callees(computation: Computation, instruction: HloInstruction) -> list[Executed]:
        if instruction.opcode == "while":
            (body,) = instruction.computation_names("body")
            (condition,) = instruction.computation_names("condition")
            if not visit(body) and not visit(condition):
                return []
            trips = trip_count(module, computation, instruction)
            trips = unknown_trip_count if trips is None else trips
            if trips is None:
                raise ProgramError(
                    f"HLO text: loop {instruction.name!r} ({instruction.op_name}) runs an unknown "
                    "number of times; pass unknown_trip_count to assume one"
                )
            return _times(visit(body), trips) + _times(visit(condition), trips + 1)
        if instruction.opcode == "conditional":
            return [item for name in branch_names(instruction) for item in visit(name)]
        return [item for name in called_names(instruction) for item in visit(name)]

    return visit(module.entry)


def branch_names(instruction: HloInstruction) -> tuple[str, ...]:
    """Branches of a conditional."""
    names = instruction.computation_names("branch_computations")
    for attribute in ("true_computation", "false_computation"):
        names += instruction.computation_names(attribute)
    return names


def _times(items: tuple[Executed, ...], factor: int) -> list[Executed]:
    if factor == 0:
        return []
    return [
        Executed(computation=i.computation, instruction=i.instruction, count=i.count * factor)
        for i in items
    ]
