"""What a compiler itself expects each instruction of its program to take.

XLA:TPU writes `estimated_cycles` into the backend config of fusions and of other work of the core
(libtpu 0.0.42.1).  XLA:GPU writes times of its own models as `reification_cost` if it is asked with
`COST_OPTION` (jax-cuda12-pjrt 0.10.2); of these "sol" is read, which knows every kind of
instruction: that of the latency estimator, with tables of dense products for some devices.

Source: seen in the text that these compilers print; tables: openxla/xla,
matmul_interpolator_data.h (Hopper and Blackwell).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from meshwise.runtime.hlo.collectives import collective_kind
from meshwise.runtime.hlo.module import Computation, HloInstruction, Module, parse_module
from meshwise.runtime.hlo.walk import executed
from meshwise.units import MICRO

COST_OPTION = "xla_gpu_collect_cost_model_stats"
_MODEL = "sol"


@dataclass(frozen=True, slots=True, kw_only=True)
class HloCost:
    """The cost of one instruction at one call site.

    Attributes:
        name: Name of the instruction.
        op_name: Where it comes from, as XLA's metadata say.
        seconds: Of one execution.
        count: Executions in one run of the program.
    """

    name: str
    op_name: str
    seconds: float
    count: int


def hlo_costs(
    text: str | Module,
    *,
    cycles_per_s: float | None = None,
    unknown_trip_count: int | None = None,
) -> tuple[HloCost, ...]:
    """Return what a compiler says of each instruction, collectives and copies beside them aside.

    An instruction of which it says nothing is left out.  Every branch of a conditional counts once.

    Args:
        text: Optimised HLO text, or the module read from it.
        cycles_per_s: Clock rate of the core, where the compiler counts cycles.
        unknown_trip_count: Trips of loops whose count the text does not tell.

    Raises:
        ProgramError: The text cannot be read, or a loop around an instruction with a cost runs an
            unknown number of times and `unknown_trip_count` is None.
    """
    module = parse_module(text) if isinstance(text, str) else text
    fused = {
        name
        for computation in module.computations.values()
        for instruction in computation.instructions
        if instruction.opcode == "fusion"
        for name in instruction.computation_names("calls")
    }

    def read(computation: Computation, instruction: HloInstruction) -> HloCost | None:
        # What is inside a fusion is in the cost of the fusion.
        if computation.name in fused or collective_kind(instruction) is not None:
            return None
        seconds = compiler_seconds(instruction, cycles_per_s)
        if seconds is None:
            return None
        return HloCost(name=instruction.name, op_name=instruction.op_name, seconds=seconds, count=1)

    found = executed(module, read, unknown_trip_count=unknown_trip_count)
    return tuple(replace(item.value, count=item.count) for item in found)


def compiler_seconds(instruction: HloInstruction, cycles_per_s: float | None) -> float | None:
    """Return what a compiler expects one execution of an instruction to take.

    Args:
        instruction: The instruction.
        cycles_per_s: Clock rate of the core, where the compiler counts cycles.

    Returns:
        Seconds; None where it says nothing.
    """
    if "estimated_cycles" in instruction.attributes and cycles_per_s is not None:
        window = instruction.backend_config.get("window_config")
        if isinstance(window, dict) and "estimated_cycles" in window:
            return int(window["estimated_cycles"]) / cycles_per_s
    if "reification_cost" in instruction.attributes:
        costs = instruction.backend_config.get("reification_cost")
        for cost in costs if isinstance(costs, list) else ():
            if cost.get("name") == _MODEL:
                return float(cost["exec_time_us"]) * MICRO
    return None
