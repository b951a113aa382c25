"""The fastest point of a trainer beside the free plan, as text and as JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from meshwise.plan.plan import Plan
from meshwise.simulate.timeline import Timeline
from meshwise.trainers.best_point import BestPoint
from meshwise.trainers.trainer import Trainer
from meshwise.units import bytes_text, counted, seconds_text

FORMAT = "meshwise-trainer-options"
_WIDTH = 100
_WHY_FASTER = (
    "the free plan is the slower one: the point as a plan of ours was excluded by --schedule or "
    "--stages, has a schedule that our plans do not have (pipelines of MaxText), or does not fit"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerAnswer:
    """The fastest that a trainer can do, and how far that is from the free plan.

    Attributes:
        trainer: The trainer.
        best: Its fastest point that fits.
        plan: The free plan, of the same model, cluster, batch and costs.
        timeline: A simulated step of the free plan.
    """

    trainer: Trainer
    best: BestPoint
    plan: Plan
    timeline: Timeline

    @property
    def options(self) -> dict[str, str]:
        """Options for the trainer, by name."""
        return self.trainer.options(self.best.point, self.best.sizes)

    @property
    def slower_share(self) -> float:
        """Predicted seconds over those of the free plan, less 1; negative if it is faster."""
        return self.best.timeline.step_time_s / self.timeline.step_time_s - 1

    @property
    def more_work_s(self) -> float:
        """Seconds that its busiest stage works longer than that of the free plan."""
        return max(self.best.timeline.busy_s) - max(self.timeline.busy_s)

    @property
    def more_waiting_s(self) -> float:
        """Seconds that its busiest stage waits longer, in bubbles and for transfers."""
        longer_s = self.best.timeline.step_time_s - self.timeline.step_time_s
        return longer_s - self.more_work_s

    def text(self) -> str:
        """Return the point, the difference, and the options as the trainer reads them."""
        return "\n".join([*self._lines(), "", self.trainer.text(self.options)])

    def to_json(self) -> str:
        """Return the same as JSON."""
        best = self.best
        data = {
            "format": FORMAT,
            "trainer": self.trainer.title,
            "options": self.options,
            "point": asdict(best.point),
            "step_time_s": best.timeline.step_time_s,
            "formula_s": best.formula_s,
            "peak_bytes": max(best.timeline.peak_bytes),
            "free": {
                "step_time_s": self.timeline.step_time_s,
                "formula_s": self.plan.formula_s,
            },
            "slower_share": self.slower_share,
            "more_work_s": self.more_work_s,
            "more_waiting_s": self.more_waiting_s,
            "num_points": best.num_points,
            "num_planned": best.num_planned,
            "limits": self.trainer.limits,
        }
        return json.dumps(data, indent=1, sort_keys=True) + "\n"

    def _lines(self) -> Iterator[str]:
        best, plan = self.best, self.plan
        yield (
            f"{self.trainer.title}: the fastest of {counted(best.num_points, 'point')}, "
            f"{best.num_planned} of them planned, the others excluded by bounds"
        )
        yield f"  point        {best.point}"
        peak = bytes_text(max(best.timeline.peak_bytes))
        name = self.trainer.schedule(best.point).name
        yield f"  step         {_seconds(best.timeline, best.formula_s)}; {name}, {peak} a device"
        yield f"  free plan    {_seconds(self.timeline, plan.formula_s)}; {plan.schedule}"
        yield f"  difference   {self._difference()}"
        limits = self.trainer.limits
        if self.slower_share < 0:
            limits = (*limits, _WHY_FASTER)
        for limit in limits:
            lines = textwrap.wrap(limit, _WIDTH - 15)
            yield f"  limit        {lines[0]}"
            yield from (f"{'':15}{line}" for line in lines[1:])

    def _difference(self) -> str:
        share = self.slower_share
        word = "slower" if share >= 0 else "faster"
        return (
            f"{abs(share):.1%} {word} than the free plan: its busiest stage works "
            f"{_more(self.more_work_s)}, waits {_more(self.more_waiting_s)}"
        )


def _seconds(timeline: Timeline, formula_s: float) -> str:
    step, formula = seconds_text(timeline.step_time_s), seconds_text(formula_s)
    return f"{step} (predicted, by simulation), {formula} by the formula of the search"


def _more(seconds: float) -> str:
    return f"{seconds_text(abs(seconds))} {'longer' if seconds >= 0 else 'less'}"
