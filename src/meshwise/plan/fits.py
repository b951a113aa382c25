"""The last look at a plan before it leaves the planner: does it fit into its devices?

Bytes are counted anew in whole numbers, task after task of the schedule, and compared with what
each device has.  Nothing of this file is used while a plan is searched for.  What a layer or a step
holds under its decision is counted by the same model of memory as in the search.

Source: docs/decisions/0018 (a plan that does not fit is never returned); Alpa eq. 5.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from meshwise.cluster.spec import ClusterSpec
from meshwise.errors import InfeasibleError, PlanError
from meshwise.graph.graph import Tensor
from meshwise.graph.layout import Layout
from meshwise.plan.plan import Plan
from meshwise.units import MIB, bytes_text, counted

# What to do where the planner itself made a plan that does not fit.
REPORT = (
    "the planner must never return such a plan: please report this, with the command or the step "
    "that was planned"
)
# What to do where it comes from a file.
REPLAN = (
    "plan the step again, or pass the memory_bytes with which it was planned if that was more "
    "(earlier versions counted less)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBytes:
    """What one device holds for a stage, in bytes.

    Attributes:
        state: Parameters and optimizer state alone; part of `resident`.
        resident: Held all the time.
        microbatch: Held from the start of a micro-batch's forward to the end of its backward pass.
        weights: Held from there to the end of its gradients of weights, where they run apart.
        temporary: On top while one of its programs runs.
        waiting: Values that wait for the layer that reads them, at the peak.
    """

    state: int
    resident: int
    microbatch: int = 0
    weights: int = 0
    temporary: int = 0
    waiting: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshBytes:
    """What one device of a mesh holds, and what it has.

    Attributes:
        name: Name of the mesh for people, as `stage 2`.
        memory: Bytes of a device that the plan may use.
        stages: The stages that run on it, by number.
        tasks: What it runs in a step, in order: the number of the stage, and `F`, `B` or `W`.
        splits_backward: Whether gradients of weights (`W`) run apart from the backward pass.
    """

    name: str
    memory: int
    stages: Mapping[int, StageBytes]
    tasks: Iterable[tuple[int, Literal["F", "B", "W"]]] = ()
    splits_backward: bool = False

    def peak(self) -> int:
        """Return the bytes of a device when it holds most."""
        most = held = sum(stage.resident for stage in self.stages.values())
        for number, kind in self.tasks:
            stage = self.stages[number]
            if kind == "F":
                held += stage.microbatch
            most = max(most, held)
            if kind == "B":
                held += (stage.weights if self.splits_backward else 0) - stage.microbatch
            elif kind == "W":
                held -= stage.weights
        waiting = sum(stage.waiting for stage in self.stages.values())
        # Whichever stage runs, its program finds room for its temporary values.
        return most + waiting + max(stage.temporary for stage in self.stages.values())


def meshes_of(
    plan: Plan, stages: Sequence[StageBytes], memory: Sequence[int]
) -> tuple[MeshBytes, ...]:
    """Return the meshes of a pipeline, with all that runs on them in a step.

    Args:
        plan: The pipeline.
        stages: What a device holds for each stage.
        memory: For each stage the bytes of a device that it may use.
    """
    table = plan.table()
    is_shared = plan.num_meshes < len(stages)
    found: list[MeshBytes] = []
    for mesh in range(table.num_meshes):
        mine = table.stages_on(mesh)
        found.append(
            MeshBytes(
                name=f"mesh {mesh}" if is_shared else f"stage {mesh}",
                memory=min(memory[k] for k in mine),
                stages={k: stages[k] for k in mine},
                tasks=[(task.stage, task.kind) for task in table.tasks[mesh]],
                splits_backward=table.splits_backward,
            )
        )
    return tuple(found)


def local_bytes(tensor: Tensor, layout: Layout, sizes: Sequence[int]) -> int:
    """Return the bytes of one device's part of a tensor.

    Args:
        tensor: The tensor.
        layout: How it lies.
        sizes: Devices along each mesh axis.
    """
    parts = [math.prod(sizes[axis] for axis in axes) for axes in layout.dims]
    shape = [-(-size // part) for size, part in zip(tensor.shape, parts, strict=True)]
    return math.prod(shape) * tensor.itemsize


def check_fits(meshes: Iterable[MeshBytes], remedy: str) -> None:
    """Check that no device needs more than it has.

    Args:
        meshes: The meshes of the plan.
        remedy: What to do if one does.

    Raises:
        PlanError: naming the meshes, with bytes.
    """
    wrong: list[str] = []
    for mesh in meshes:
        for number, stage in mesh.stages.items():
            if stage.state > stage.resident:
                wrong.append(
                    f"stage {number} counts {stage.resident} bytes that are always held, less than "
                    f"its parameters and optimizer state alone ({stage.state} bytes)"
                )
        peak = mesh.peak()
        if peak > mesh.memory:
            wrong.append(
                f"{mesh.name} needs {bytes_text(peak)} ({peak} bytes) a device, and a device has "
                f"{bytes_text(mesh.memory)} ({mesh.memory} bytes)"
            )
    if wrong:
        raise PlanError(f"this plan does not fit: {'; '.join(wrong)}; {remedy}")


def check_state_fits(state_bytes: int, cluster: ClusterSpec, memory_bytes: int | None) -> None:
    """Check that all devices together can hold the state of a step, before anything is planned.

    Args:
        state_bytes: Bytes of the arguments that are not batch data, each counted once.
        cluster: Where the step would run.
        memory_bytes: Bytes of a device that the step may use; None: what the cluster has.

    Raises:
        InfeasibleError: they cannot; with the memory, or the devices, that it takes at least.
    """
    sizes = [
        (group.count * group.host.num_devices, memory_bytes or group.host.device.memory_bytes)
        for group in cluster.groups
    ]
    has = sum(count * size for count, size in sizes)
    if state_bytes <= has:
        return
    each = math.ceil(state_bytes / cluster.num_devices)
    devices = math.ceil(state_bytes / max(size for _, size in sizes))
    raise InfeasibleError(
        f"the arguments of the step that are not batch data (parameters, optimizer state) take "
        f"{bytes_text(state_bytes)}, and the memory of all devices of {cluster.name} is "
        f"{bytes_text(has)}. They alone need at least {bytes_text(each)} on each device, or "
        f"{counted(devices, 'device')} like the largest one there; use more devices, "
        f"a smaller model, or an optimizer that keeps less{_unit_hint(memory_bytes)}"
    )


def _unit_hint(memory_bytes: int | None) -> str:
    """Return that a number is one of bytes, where it is so small that another unit was meant."""
    if memory_bytes is None or memory_bytes >= MIB:
        return ""
    n = memory_bytes
    return f". memory_bytes={n} is {counted(n, 'byte')}; {n} GiB are {n} * 2**30"
