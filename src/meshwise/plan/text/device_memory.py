"""Whether a plan fits into the memory of its devices: comparison, sentence and JSON fields.

Texts, pages, simulations and differences all say it with what is here.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from meshwise.cluster.spec import ClusterSpec
from meshwise.plan.files.json_read import Json
from meshwise.plan.record import PlanRecord
from meshwise.plan.text.columns import WIDTH
from meshwise.plan.text.shortening import shortened
from meshwise.units import bytes_text

# The sentence names that many meshes that are too large, those with the most excess first.
_MOST_NAMED = 4
# Amounts with their units, and stages and meshes with their numbers, stay on one line.
_TOGETHER = re.compile(r"(?<=\d) (?=[KMGT]?i?B\b)|(?<=\bstage) (?=\d)|(?<=\bmesh) (?=\d)")
# Names of clusters are the user's, and may be long.
_LONGEST_HOLDER = 40
PLAN_AGAIN = "Plan again with this version of Meshwise: earlier ones could return such plans."


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """Memory of one device of a mesh.

    Attributes:
        name: What the mesh is called: `stage 0`, or `mesh 1 (stages 1, 3)`.
        stages: Numbers of the stages on it.
        peak_bytes: What they need together at the peak.
        memory_bytes: What a device has.
    """

    name: str
    stages: tuple[int, ...]
    peak_bytes: int
    memory_bytes: int

    @property
    def free_bytes(self) -> int:
        """What a device has beyond the peak; negative where the peak is too large."""
        return self.memory_bytes - self.peak_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCheck:
    """Peaks of a plan, compared with the memory of its devices.

    Attributes:
        meshes: Each mesh, in the order of the plan.
        holder: What has the memory, as a noun: `a device of v5e-16`.
        remedy: What to do where the plan does not fit, as a whole sentence.
    """

    meshes: tuple[DeviceMemory, ...]
    holder: str
    remedy: str

    @property
    def too_large(self) -> tuple[int, ...]:
        """Numbers of the meshes that need more memory than a device has."""
        return too_large(
            [mesh.peak_bytes for mesh in self.meshes], [mesh.memory_bytes for mesh in self.meshes]
        )

    @property
    def fits(self) -> bool:
        """Whether every device has what its stages need."""
        return not self.too_large

    @property
    def sentence(self) -> str:
        """`does not fit: ...` with numbers and a remedy, or `fits: ...` with what is free."""
        return self._numbers if self.fits else f"{self._numbers}. {self.remedy}"

    @property
    def _numbers(self) -> str:
        if self.fits:
            fullest = min(self.meshes, key=lambda mesh: mesh.free_bytes)
            where = f" ({fullest.name})" if len(self.meshes) > 1 else ""
            return (
                f"fits: {bytes_text(fullest.free_bytes)} of {bytes_text(fullest.memory_bytes)} are "
                f"free on the fullest device{where}"
            )
        first, *others = sorted(
            (self.meshes[number] for number in self.too_large), key=lambda mesh: mesh.free_bytes
        )
        parts = [
            f"does not fit: {first.name} needs {bytes_text(first.peak_bytes)}, "
            f"{shortened(self.holder, _LONGEST_HOLDER)} has {bytes_text(first.memory_bytes)}: "
            f"{bytes_text(-first.free_bytes)} too much"
        ]
        parts += [
            f"{mesh.name} needs {bytes_text(mesh.peak_bytes)} of "
            f"{bytes_text(mesh.memory_bytes)}: {bytes_text(-mesh.free_bytes)} too much"
            for mesh in others[: _MOST_NAMED - 1]
        ]
        if len(others) >= _MOST_NAMED:
            parts.append(f"and {len(others) - _MOST_NAMED + 1} more")
        return "; ".join(parts)

    def warning_lines(self, subject: str = "") -> list[str]:
        """Return the lines with which a text starts if the plan does not fit; none if it does.

        Args:
            subject: Name of the plan, where the text is about several.
        """
        if self.fits:
            return []
        numbers = f"{subject}: {self._numbers}" if subject else self._numbers
        lines = textwrap.wrap(_TOGETHER.sub("\u00a0", numbers), WIDTH)
        return [line.replace("\u00a0", " ") for line in lines] + textwrap.wrap(self.remedy, WIDTH)

    def data(self) -> dict[str, Json]:
        """Return the fields `fits` and `too_large` of JSON forms."""
        return {
            "fits": self.fits,
            "too_large": [
                {
                    "mesh": number,
                    "stages": list(self.meshes[number].stages),
                    "peak_bytes": self.meshes[number].peak_bytes,
                    "memory_bytes": self.meshes[number].memory_bytes,
                    "excess_bytes": -self.meshes[number].free_bytes,
                }
                for number in self.too_large
            ],
        }


def too_large(peak_bytes: Sequence[int], memory_bytes: Sequence[int]) -> tuple[int, ...]:
    """Return the numbers of the meshes whose peak is above what a device has.

    Args:
        peak_bytes: For each mesh what one device needs at the peak.
        memory_bytes: For each mesh what one device has.
    """
    pairs = zip(peak_bytes, memory_bytes, strict=True)
    return tuple(number for number, (peak, memory) in enumerate(pairs) if peak > memory)


def mesh_memories(
    mesh_of_stage: Sequence[int], peak_bytes: Sequence[int], memory_bytes: Sequence[int]
) -> tuple[DeviceMemory, ...]:
    """Return the memory of each mesh of a plan, with the names of its stages.

    Args:
        mesh_of_stage: For each stage its mesh.
        peak_bytes: For each mesh what one device needs at the peak.
        memory_bytes: For each mesh what one device has.
    """
    is_shared = len(peak_bytes) < len(mesh_of_stage)
    found: list[DeviceMemory] = []
    for mesh, (peak, memory) in enumerate(zip(peak_bytes, memory_bytes, strict=True)):
        stages = tuple(k for k, m in enumerate(mesh_of_stage) if m == mesh)
        numbers = ", ".join(map(str, stages))
        name = f"mesh {mesh} (stages {numbers})" if is_shared else f"stage {numbers}"
        found.append(
            DeviceMemory(
                name="the plan" if len(mesh_of_stage) == 1 else name,
                stages=stages,
                peak_bytes=peak,
                memory_bytes=memory,
            )
        )
    return tuple(found)


def mesh_memory_bytes(plan: PlanRecord) -> tuple[int, ...]:
    """Return for each mesh what a device has: the least of what its stages say."""
    least: dict[int, int] = {}
    for mesh, stage in zip(plan.mesh_of_stage, plan.stages, strict=True):
        least[mesh] = min(least.get(mesh, stage.memory_bytes), stage.memory_bytes)
    return tuple(least[mesh] for mesh in sorted(least))


def memory_holder(plan: PlanRecord, cluster: ClusterSpec | None) -> str:
    """Return what has the memory of a mesh, as a noun: where hosts differ, its smallest device.

    Args:
        plan: The plan.
        cluster: Where it runs; None if that is not known.
    """
    if cluster is None:
        mesh = plan.stages[0].mesh
        return f"a device of {mesh.num_devices} x {mesh.device.name}"
    return "its smallest device" if cluster.is_mixed else f"a device of {cluster.name}"


def plan_memory(plan: PlanRecord) -> MemoryCheck:
    """Compare the predicted peak of each mesh with what its devices have.

    Args:
        plan: The plan.

    Returns:
        For each mesh what it needs and has, and what to do if that is too little.
    """
    return MemoryCheck(
        meshes=mesh_memories(plan.mesh_of_stage, plan.mesh_peak_bytes, mesh_memory_bytes(plan)),
        holder=memory_holder(plan, plan.cluster),
        remedy=PLAN_AGAIN,
    )
