"""What stage construction decides on: costs of runs of layers on submeshes, as plain numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import EllipsisType
from typing import TypeAlias

import numpy as np

from meshwise.inter.stages.submeshes import StageSubmesh
from meshwise.kernels.arrays import Bools, Floats
from meshwise.schedules.one_f_one_b import ALPA, ONE_F_ONE_B
from meshwise.schedules.pipeline_schedule import PipelineSchedule
from meshwise.units import bytes_text

# First layer, last layer, submesh, variant.
Place: TypeAlias = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageCosts:
    """Costs of layers i to j on a submesh, in several variants (plans, rematerialisation).

    All arrays have the shape (L, L, M, V) and the index [first, last, submesh, variant].

    Attributes:
        submeshes: M kinds.
        microbatch_s: Forward and backward of one micro-batch; infinite where there is no such
            stage.
        once_s: Once a step: synchronisation of gradients, optimizer.
        resident_bytes: On each device, always: parameters, optimizer state, gradients.
        microbatch_bytes: Activations held for each micro-batch in flight.
        temporary_bytes: The most that is live beside these.
        gather_s: To gather what the neighbours of a stage send, beside `microbatch_s`; none if
            left out.
    """

    submeshes: tuple[StageSubmesh, ...]
    microbatch_s: Floats
    once_s: Floats
    resident_bytes: Floats
    microbatch_bytes: Floats
    temporary_bytes: Floats
    gather_s: Floats | None = None

    def __post_init__(self) -> None:
        """Check shapes.

        Raises:
            ValueError: arrays differ in shape, or do not fit the submeshes.
        """
        shape = self.microbatch_s.shape
        if (
            len(shape) != 4
            or shape[0] != shape[1]
            or shape[2] != len(self.submeshes)
            or not shape[3]
        ):
            raise ValueError(f"costs have shape {shape}, expected (L, L, {len(self.submeshes)}, V)")
        for name, array in self.columns().items():
            if array.shape != shape:
                raise ValueError(f"`{name}` has shape {array.shape}, `microbatch_s` {shape}")

    @property
    def num_layers(self) -> int:
        """L."""
        return int(self.microbatch_s.shape[0])

    @property
    def busy_s(self) -> Floats:
        """Time of one micro-batch with the gathers at both ends."""
        return self.microbatch_s if self.gather_s is None else self.microbatch_s + self.gather_s

    def peak_bytes(self, in_flight: float, at: Place | EllipsisType = ...) -> Floats:
        """Return the bytes that stages need on each of their devices.

        Args:
            in_flight: Micro-batches in flight.
            at: The stage; all of them by default.
        """
        held = in_flight * self.microbatch_bytes[at]
        return self.resident_bytes[at] + held + self.temporary_bytes[at]

    def memory_text(self, in_flight: float, at: Place) -> str:
        """Return the parts of a stage's memory in words; the arguments as `peak_bytes`."""
        resident, microbatch, temporary = (
            bytes_text(float(part[at]))
            for part in (self.resident_bytes, self.microbatch_bytes, self.temporary_bytes)
        )
        return (
            f"{resident} resident, {in_flight:g} micro-batches in flight of {microbatch}, "
            f"{temporary} temporary"
        )

    def columns(self) -> dict[str, Floats]:
        """The arrays by name."""
        columns = {
            "microbatch_s": self.microbatch_s,
            "once_s": self.once_s,
            "resident_bytes": self.resident_bytes,
            "microbatch_bytes": self.microbatch_bytes,
            "temporary_bytes": self.temporary_bytes,
        }
        return columns if self.gather_s is None else columns | {"gather_s": self.gather_s}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageProblem:
    """Layers to be cut into stages.

    Attributes:
        costs: Of every possible stage.
        num_devices: D, in the cluster's order where submeshes have positions.
        num_microbatches: B.
        schedule: Fixes micro-batches in flight and what hides.
        transfer_s: [k, left, right]: time to pass the values of one micro-batch over the boundary
            after layer k, forward and backward together, between submeshes of these kinds; shape
            (L - 1, M, M).  None: no time.
        use_all_devices: Whether every device must belong to a stage.
        allowed: Which stages may be chosen, indexed as the costs; None: all that exist.
    """

    costs: StageCosts
    num_devices: int
    num_microbatches: int
    schedule: PipelineSchedule = ONE_F_ONE_B
    transfer_s: Floats | None = None
    use_all_devices: bool = False
    allowed: Bools | None = None

    def __post_init__(self) -> None:
        """Check what can be checked by itself.

        Raises:
            ValueError: counts below one, or transfers of the wrong shape or sign.
        """
        if self.num_devices < 1 or self.num_microbatches < 1:
            raise ValueError("`num_devices` and `num_microbatches` must be at least 1")
        if self.transfer_s is not None:
            kinds = len(self.costs.submeshes)
            expected = (self.costs.num_layers - 1, kinds, kinds)
            if self.transfer_s.shape != expected:
                raise ValueError(f"`transfer_s` has shape {self.transfer_s.shape}, not {expected}")
            if not np.isfinite(self.transfer_s).all() or (self.transfer_s < 0).any():
                raise ValueError("`transfer_s` holds values that are infinite or below 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSpan:
    """A run of layers on a submesh.

    Attributes:
        first_layer: First layer.
        last_layer: Last layer, included.
        submesh: Index of the kind of submesh.
        variant: Index of the variant.
        first_device: Where it begins in the cluster's order of devices.  Submeshes without
            positions are numbered one after another; `placement.place_stages` finds real places.
    """

    first_layer: int
    last_layer: int
    submesh: int
    variant: int
    first_device: int

    @property
    def place(self) -> Place:
        """Where the arrays of `StageCosts` have the stage."""
        return self.first_layer, self.last_layer, self.submesh, self.variant


def as_alpa(problem: StageProblem) -> StageProblem:
    """The same problem as the paper states it.

    Eq. 2 without transfers and their gathers, and without what is done once (a user of this mode
    adds its share to `microbatch_s`), eq. 5 for 1F1B, every device used.
    """
    nothing = np.zeros_like(problem.costs.once_s)
    costs = replace(problem.costs, once_s=nothing, gather_s=None)
    return replace(problem, costs=costs, schedule=ALPA, transfer_s=None, use_all_devices=True)


def in_flight(problem: StageProblem, stages: Sequence[StageSpan], index: int) -> float:
    """Return the micro-batches that one of several stages has in flight.

    Args:
        problem: What the stages were chosen from.
        stages: All stages, in order.
        index: Number of the stage.
    """
    to_end = len(stages) - index
    return problem.schedule.in_flight(to_end, len(stages), problem.num_microbatches)


def memory_bytes(problem: StageProblem, stages: Sequence[StageSpan], index: int) -> float:
    """Return the bytes that one of several stages needs on each of its devices.

    Args:
        problem: What the stages were chosen from.
        stages: All stages, in order.
        index: Number of the stage.
    """
    return float(problem.costs.peak_bytes(in_flight(problem, stages, index), stages[index].place))


def spare_share(problem: StageProblem, stages: Sequence[StageSpan]) -> float:
    """Return the share of the memory of devices that may be left free while stages fit.

    Args:
        problem: What the stages were chosen from; each mesh has one stage.
        stages: All stages, in order.
    """
    used: list[float] = []
    for number, stage in enumerate(stages):
        submesh = problem.costs.submeshes[stage.submesh]
        all_bytes = submesh.memory_bytes + submesh.reserved_bytes
        used.append(memory_bytes(problem, stages, number) / all_bytes)
    return 1.0 - max(used)
