"""Why no stages fit, in words: first what no layer can do, then what all together cannot."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from meshwise.errors import InfeasibleError
from meshwise.inter.stages.stage_problem import (
    Place,
    StageProblem,
    StageSpan,
    in_flight,
    memory_bytes,
)
from meshwise.kernels.arrays import Floats
from meshwise.units import bytes_text

Feasible: TypeAlias = Callable[[StageProblem, int | None], Sequence[StageSpan]]

_ADVICE = "more devices, smaller micro-batches, rematerialisation or sharded optimizer state help"
# The least sufficient memory is found to a part in 2^7.
_BISECTIONS = 7
_MOST_MEMORY = 2.0**20


def infeasible(
    problem: StageProblem, num_stages: int | None, feasible: Feasible
) -> InfeasibleError:
    """The error that says what is missing.

    Args:
        problem: One without a solution.
        num_stages: The number of stages that was asked for, if any.
        feasible: Any stages of a problem, none if there are none.
    """
    layer = _layer_without_cost(problem)
    if layer is not None:
        return InfeasibleError(
            f"layer {layer} runs on no submesh: no stage that holds it has a finite time"
        )
    if not feasible(_with_memory(problem, math.inf), num_stages):
        return InfeasibleError(what_is_in_the_way(problem, num_stages, feasible))
    text = _layer_text(problem) or _state_text(problem)
    return InfeasibleError(text or _stage_text(problem, num_stages, feasible))


def what_is_in_the_way(problem: StageProblem, num_stages: int | None, feasible: Feasible) -> str:
    """Why layers cannot be cut into stages, whatever the memory.

    Args:
        problem: One without a solution, also with endless memory.
        num_stages: The number of stages that was asked for, if any.
        feasible: Any stages of a problem, none if there are none.
    """
    return _devices_text(problem, num_stages) + _devices_remedy(problem, num_stages, feasible)


def _with_memory(problem: StageProblem, factor: float) -> StageProblem:
    submeshes = tuple(
        replace(m, memory_bytes=m.memory_bytes * factor) for m in problem.costs.submeshes
    )
    return replace(problem, costs=replace(problem.costs, submeshes=submeshes))


def _layer_without_cost(problem: StageProblem) -> int | None:
    """The first layer that is in no stage at all."""
    size = np.array([m.num_devices for m in problem.costs.submeshes])
    fits = (size <= problem.num_devices)[:, None]
    exists = np.isfinite(problem.costs.microbatch_s) & fits
    for layer in range(problem.costs.num_layers):
        if not np.any(exists[: layer + 1, layer:]):
            return layer
    return None


def _devices_text(problem: StageProblem, num_stages: int | None) -> str:
    layers, devices = problem.costs.num_layers, problem.num_devices
    text = f"{layers} layer{'s' if layers > 1 else ''} cannot be cut into "
    text += "stages" if num_stages is None else f"{num_stages} stages"
    text += f" that use {'all' if problem.use_all_devices else 'at most'} {devices} devices"
    shapes = ", ".join(dict.fromkeys(str(m) for m in problem.costs.submeshes))
    return text + f", on submeshes {shapes}, whatever the memory"


def _devices_remedy(problem: StageProblem, num_stages: int | None, feasible: Feasible) -> str:
    """What would help where the number of stages or of devices is in the way."""
    layers, devices = problem.costs.num_layers, problem.num_devices
    if num_stages is not None and num_stages > layers:
        most = f"at most {layers} stages" if layers > 1 else "1 stage"
        return f"; a stage has at least one layer: ask for {most}, or for more layers"
    if num_stages is not None and num_stages > devices:
        return f"; a stage has at least one device: ask for at most {devices} stages"
    free = _with_memory(replace(problem, use_all_devices=False), math.inf)
    if problem.use_all_devices and feasible(free, num_stages):
        return "; there are stages if devices may stay idle (use_all_devices=False)"
    if num_stages is not None and feasible(_with_memory(problem, math.inf), None):
        return "; there are stages of another number"
    return ""


def _state_text(problem: StageProblem) -> str | None:
    """The memory of all layers together, if it is more than that of all devices."""
    costs = problem.costs
    size = np.array([m.num_devices for m in costs.submeshes])[:, None]
    everywhere = np.where(np.isfinite(costs.microbatch_s), costs.resident_bytes * size, np.inf)
    need = least_sum(everywhere.min(axis=(2, 3)))
    has = _memory_of_all(problem)
    if need <= has:
        return None
    return (
        f"the layers do not fit into the cluster together: parameters, gradients and optimizer "
        f"state need at least {bytes_text(need)}, and {problem.num_devices} devices have "
        f"{bytes_text(has)}; {math.ceil(need / has)} times as many hosts have as much, {_ADVICE}"
    )


def least_sum(whole: Floats) -> float:
    """The least sum over runs that hold every layer once.

    Args:
        whole: What a run takes, by first and last layer.
    """
    best = [0.0]
    for last in range(len(whole)):
        best.append(min(best[k] + float(whole[k, last]) for k in range(last + 1)))
    return best[-1]


def _memory_of_all(problem: StageProblem) -> float:
    """Bytes of all devices; of each the most that a submesh on it has."""
    memory = np.zeros(problem.num_devices)
    for m in problem.costs.submeshes:
        starts = range(problem.num_devices) if m.starts is None else m.starts
        for start in starts:
            part = memory[start : start + m.num_devices]
            np.maximum(part, m.memory_bytes, out=part)
    return float(memory.sum())


def _layer_text(problem: StageProblem) -> str | None:
    """The layer that lacks most memory even in the last stage, where least is in flight."""
    costs = problem.costs
    memory = np.array([m.memory_bytes for m in costs.submeshes])[None, None, :, None]
    flying = problem.schedule.in_flight(1, 1, problem.num_microbatches)
    need = costs.peak_bytes(flying)
    size = np.array([m.num_devices for m in costs.submeshes])
    possible = np.isfinite(costs.microbatch_s) & (size <= problem.num_devices)[:, None]
    share = np.where(possible, need / memory, np.inf)
    worst = 1.0
    at: tuple[int, Place] | None = None
    for layer in range(costs.num_layers):
        part = share[: layer + 1, layer:]
        least = float(part.min())
        if least > worst:
            where = np.unravel_index(int(part.argmin()), part.shape)
            row, column, kind, variant = map(int, where)
            worst, at = least, (layer, (row, layer + column, kind, variant))
    if at is None:
        return None
    layer, place = at
    first, last, kind, _ = place
    submesh = costs.submeshes[kind]
    return (
        f"layer {layer} does not fit into memory: the least that it needs, in a last stage of "
        f"layers {first} to {last} on submesh {submesh}, is {bytes_text(float(need[place]))} a "
        f"device of {bytes_text(submesh.memory_bytes)} ({costs.memory_text(flying, place)}); "
        f"{_ADVICE}"
    )


def _stage_text(problem: StageProblem, num_stages: int | None, feasible: Feasible) -> str:
    """Each layer fits somewhere, but no stages do: what the least sufficient memory would be."""
    enough = 2.0
    while enough < _MOST_MEMORY and not feasible(_with_memory(problem, enough), num_stages):
        enough *= 2.0
    too_little = enough / 2.0
    for _ in range(_BISECTIONS):
        middle = (enough + too_little) / 2.0
        if feasible(_with_memory(problem, middle), num_stages):
            enough = middle
        else:
            too_little = middle
    stages = feasible(_with_memory(problem, enough), num_stages)
    submeshes = problem.costs.submeshes
    need = [memory_bytes(problem, stages, i) for i in range(len(stages))]
    shares = [n / submeshes[s.submesh].memory_bytes for n, s in zip(need, stages, strict=True)]
    i = max(range(len(stages)), key=lambda n: shares[n])
    stage = stages[i]
    flying = in_flight(problem, stages, i)
    return (
        f"no stages fit into memory; with {enough:.3g} times the memory {len(stages)} would, and "
        f"the tightest is then stage {i}, layers {stage.first_layer} to {stage.last_layer} on "
        f"submesh {submeshes[stage.submesh]}: it needs {bytes_text(need[i])} a device "
        f"({problem.costs.memory_text(flying, stage.place)}) of "
        f"{bytes_text(submeshes[stage.submesh].memory_bytes)}; {_ADVICE}"
    )
