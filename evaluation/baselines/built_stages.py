"""Stage construction that says what is missing where no stages fit, also for the paper's problem.

First what no layer can do, then what all together cannot.
"""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

import numpy as np

from meshwise.errors import InfeasibleError
from meshwise.inter.stages.stage_construction import (
    EPSILON_S,
    StagePlan,
    build_stages_below,
    feasible_stages,
)
from meshwise.inter.stages.stage_problem import (
    Place,
    StageProblem,
    as_alpa,
    in_flight,
    memory_bytes,
)
from meshwise.inter.stages.stage_refusal import what_is_in_the_way, with_memory
from meshwise.kernels.arrays import Floats
from meshwise.units import bytes_text

Mode: TypeAlias = Literal["alpa", "time"]

_ADVICE = "more devices, smaller micro-batches, rematerialisation or sharded optimizer state help"
# The least sufficient memory is found to a part in 2^7.
_BISECTIONS = 7
_MOST_MEMORY = 2.0**20


def build_stages(
    problem: StageProblem,
    mode: Mode = "time",
    *,
    num_stages: int | None = None,
    epsilon_s: float = EPSILON_S,
) -> StagePlan:
    """Return the best stages.

    Args:
        problem: Layers, submeshes, costs, micro-batches, schedule.
        mode: "time" for the whole objective, where devices may stay unused unless the problem says
            otherwise; "alpa" for the paper's problem, in which all are used and the problem's
            schedule and transfers are not looked at.
        num_stages: Exactly so many; any number by default.
        epsilon_s: As in `build_stages_below`.

    Raises:
        InfeasibleError: no stages fit; the text names the layers whose memory is too small.
    """
    problem = as_alpa(problem) if mode == "alpa" else problem
    plan = build_stages_below(problem, math.inf, num_stages=num_stages, epsilon_s=epsilon_s)
    if plan is None:
        raise infeasible(problem, num_stages)
    return plan


def infeasible(problem: StageProblem, num_stages: int | None) -> InfeasibleError:
    """The error that says what is missing.

    Args:
        problem: One without a solution.
        num_stages: The number of stages that was asked for, if any.
    """
    layer = _layer_without_cost(problem)
    if layer is not None:
        return InfeasibleError(
            f"layer {layer} runs on no submesh: no stage that holds it has a finite time"
        )
    if not feasible_stages(with_memory(problem, math.inf), num_stages):
        return InfeasibleError(what_is_in_the_way(problem, num_stages, feasible_stages))
    text = _layer_text(problem) or _state_text(problem)
    return InfeasibleError(text or _stage_text(problem, num_stages))


def _layer_without_cost(problem: StageProblem) -> int | None:
    """The first layer that is in no stage at all."""
    size = np.array([m.num_devices for m in problem.costs.submeshes])
    fits = (size <= problem.num_devices)[:, None]
    exists = np.isfinite(problem.costs.microbatch_s) & fits
    for layer in range(problem.costs.num_layers):
        if not np.any(exists[: layer + 1, layer:]):
            return layer
    return None


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


def _stage_text(problem: StageProblem, num_stages: int | None) -> str:
    """Each layer fits somewhere, but no stages do: what the least sufficient memory would be."""
    enough = 2.0
    while enough < _MOST_MEMORY and not feasible_stages(with_memory(problem, enough), num_stages):
        enough *= 2.0
    too_little = enough / 2.0
    for _ in range(_BISECTIONS):
        middle = (enough + too_little) / 2.0
        if feasible_stages(with_memory(problem, middle), num_stages):
            enough = middle
        else:
            too_little = middle
    stages = feasible_stages(with_memory(problem, enough), num_stages)
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
