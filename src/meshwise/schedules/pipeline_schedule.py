"""What stage construction needs to know of a schedule: micro-batches in flight, fill, overlap.

With t the time of a micro-batch on a stage and n equal stages, the step takes B t + (n - 1) f,
where f = `fill_s` is the part of t that shows while the pipeline fills and drains:

- GPipe, 1F1B, eager 1F1B: f = t;
- interleaved 1F1B with v chunks a device: f = t / v;
- zero-bubble H1: f = t - 2 w, where w is the time of the weight gradients (W): of T_F + T_B + T_W,
  T_F + T_B - T_W shows.

Source: docs/facts.md section 5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from meshwise.schedules import eager_one_f_one_b, gpipe, one_f_one_b, zero_bubble_h1
from meshwise.schedules import interleaved as interleaved_table

FloatArray: TypeAlias = npt.NDArray[np.float64]
ScheduleName: TypeAlias = Literal[
    "gpipe", "1f1b", "eager-1f1b", "interleaved-1f1b", "zero-bubble-h1", "alpa"
]

_TABLES: dict[ScheduleName, str] = {
    "gpipe": gpipe.NAME,
    "1f1b": one_f_one_b.NAME,
    "alpa": one_f_one_b.NAME,
    "eager-1f1b": eager_one_f_one_b.NAME,
    "interleaved-1f1b": interleaved_table.NAME,
    "zero-bubble-h1": zero_bubble_h1.NAME,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSchedule:
    """A schedule as the stage construction sees it.

    Attributes:
        name: Which; "alpa" is 1F1B with memory as in eq. 5, which does not look at B.
        chunks: v of the interleaved schedule, else 1.
        hides_transfers: Whether transfers between stages run beside computation.
        delays_weights: Whether gradients of weights run apart, as late as covers the transfers of
            gradients of activations.
    """

    name: ScheduleName
    chunks: int = 1
    hides_transfers: bool = False
    delays_weights: bool = False

    def __post_init__(self) -> None:
        """Check the number of chunks.

        Raises:
            ValueError: chunks without interleaving, or interleaving without chunks.
        """
        if (self.chunks > 1) != (self.name == "interleaved-1f1b") or self.chunks < 1:
            raise ValueError(f"schedule {self.name!r} with {self.chunks} chunks a device")

    @property
    def table_name(self) -> str:
        """Name in `schedules.registry`."""
        return _TABLES[self.name]

    @property
    def splits_backward(self) -> bool:
        """Whether gradients of weights run apart from those of activations."""
        return self.delays_weights or self.name == "zero-bubble-h1"

    @property
    def depends_on_num_stages(self) -> bool:
        """Whether `in_flight` needs the number of stages."""
        return self.name == "interleaved-1f1b"

    def allows(self, num_stages: int, num_microbatches: int) -> bool:
        """Whether such a pipeline can run; interleaving needs B divisible by the stages."""
        return self.name != "interleaved-1f1b" or num_microbatches % num_stages == 0

    def in_flight(self, to_end: int, num_stages: int, num_microbatches: int) -> float:
        """Micro-batches whose activations a stage holds at once, at most.

        Args:
            to_end: Stages from this one to the last, both counted: n - i.
            num_stages: n; only interleaving looks at it.
            num_microbatches: B.
        """
        match self.name:
            case "gpipe":
                return num_microbatches
            case "1f1b" | "zero-bubble-h1":
                return min(to_end, num_microbatches)
            case "eager-1f1b":
                return min(2 * to_end - 1, num_microbatches)
            case "alpa":
                return to_end
            case "interleaved-1f1b":
                # Each chunk holds a v-th of the stage's activations.
                warm_up = 2 * (to_end - 1) + (self.chunks - 1) * num_stages + 1
                return min(warm_up / self.chunks, num_microbatches)

    def fill_s(self, microbatch_s: FloatArray, weight_s: FloatArray | None) -> FloatArray:
        """The part of a micro-batch's time that shows while the pipeline fills and drains."""
        if self.name == "zero-bubble-h1" and weight_s is not None:
            return np.maximum(microbatch_s - 2.0 * weight_s, 0.0)
        return microbatch_s / self.chunks


GPIPE = PipelineSchedule(name="gpipe")
ONE_F_ONE_B = PipelineSchedule(name="1f1b")
EAGER = PipelineSchedule(name="eager-1f1b", hides_transfers=True)
ALPA = PipelineSchedule(name="alpa")
ZERO_BUBBLE = PipelineSchedule(name="zero-bubble-h1")


def interleaved(chunks: int) -> PipelineSchedule:
    """Interleaved 1F1B with `chunks` chunks a device, at least two."""
    return PipelineSchedule(name="interleaved-1f1b", chunks=chunks)


# What a search tries unless it is told otherwise; of equals the first is taken.
SEARCHED = (ONE_F_ONE_B, EAGER)

# Those that a user can choose by name.
CHOICES: Mapping[str, PipelineSchedule] = MappingProxyType(
    {
        **{schedule.name: schedule for schedule in (ONE_F_ONE_B, GPIPE, EAGER, ZERO_BUBBLE)},
        "interleaved-1f1b": interleaved(2),
        "1f1b-delayed": PipelineSchedule(name="1f1b", hides_transfers=True, delays_weights=True),
        "eager-1f1b-delayed": replace(EAGER, delays_weights=True),
    }
)

# In place of a name: all of them, planned in turns, the fastest by simulation.
ALL = "all"


def named(name: str) -> tuple[PipelineSchedule, ...]:
    """The schedule of a name, or all.

    Args:
        name: Of `CHOICES`, or `ALL`.
    """
    return tuple(CHOICES.values()) if name == ALL else (CHOICES[name],)


def name_of(schedule: PipelineSchedule) -> str:
    """The name by which a user chooses a schedule."""
    return next((name for name, other in CHOICES.items() if other == schedule), schedule.name)


def searched_together(schedules: Sequence[PipelineSchedule]) -> list[tuple[PipelineSchedule, ...]]:
    """Schedules in groups that one search can choose from, in their order.

    The search knows nothing of gradients of weights apart, which take time and memory of their own,
    nor of several stages on a mesh: such schedules stand alone.
    """
    apart = [s for s in schedules if s.chunks > 1 or s.splits_backward]
    together = tuple(s for s in schedules if s not in apart)
    return [*([together] if together else []), *((s,) for s in apart)]
