"""Why layers cannot be cut into stages, whatever the memory, in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from meshwise.inter.stages.stage_problem import StageProblem, StageSpan
from meshwise.units import counted

Feasible: TypeAlias = Callable[[StageProblem, int | None], Sequence[StageSpan]]


def what_is_in_the_way(problem: StageProblem, num_stages: int | None, feasible: Feasible) -> str:
    """Why layers cannot be cut into stages, whatever the memory.

    Args:
        problem: One without a solution, also with endless memory.
        num_stages: The number of stages that was asked for, if any.
        feasible: Any stages of a problem, none if there are none.
    """
    return _devices_text(problem, num_stages) + _devices_remedy(problem, num_stages, feasible)


def with_memory(problem: StageProblem, factor: float) -> StageProblem:
    """Return the problem with so many times the memory on each device."""
    submeshes = tuple(
        replace(m, memory_bytes=m.memory_bytes * factor) for m in problem.costs.submeshes
    )
    return replace(problem, costs=replace(problem.costs, submeshes=submeshes))


def _devices_text(problem: StageProblem, num_stages: int | None) -> str:
    layers, devices = problem.costs.num_layers, problem.num_devices
    text = f"{counted(layers, 'layer')} cannot be cut into "
    text += "stages" if num_stages is None else counted(num_stages, "stage")
    uses = "use" if num_stages != 1 else "uses"
    most = "all" if problem.use_all_devices else "at most"
    text += f" that {uses} {most} {counted(devices, 'device')}"
    shapes = ", ".join(dict.fromkeys(str(m) for m in problem.costs.submeshes))
    return text + f", on submeshes {shapes}, whatever the memory"


def _devices_remedy(problem: StageProblem, num_stages: int | None, feasible: Feasible) -> str:
    """What would help where the number of stages or of devices is in the way."""
    layers, devices = problem.costs.num_layers, problem.num_devices
    endless = with_memory(problem, math.inf)
    if num_stages is not None and num_stages > min(layers, devices):
        why = (
            "; a stage has at least one layer, and a layer at least one dense product or "
            "convolution, which may stand in a loop"
            if num_stages > layers
            else "; a stage has at least one device"
        )
        fewer = range(min(layers, devices), 0, -1)
        most = next((count for count in fewer if feasible(endless, count)), None)
        return why + ("" if most is None else _fewer_text(most, layers))
    if problem.use_all_devices and feasible(replace(endless, use_all_devices=False), num_stages):
        return "; there are stages if devices may stay idle (use_all_devices=False)"
    if num_stages is not None and feasible(endless, None):
        return "; there are stages of another number"
    return ""


def _fewer_text(most: int, layers: int) -> str:
    text = ": ask for " + ("1 stage" if most == 1 else f"at most {most} stages")
    return text + (" (schedules with several stages on each mesh may have more)" * (most < layers))
