"""What is told of a training run as it happens: the loop prints nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from meshwise.jax_compat.jaxprs import PyTree
from meshwise.plan.plan import Plan
from meshwise.report.host_stats import HostStats
from meshwise.simulate.timeline import Timeline
from meshwise.train.options import TrainOptions
from meshwise.train.sample import Sample
from meshwise.train.summary import TrainSummary
from meshwise.train.training import Training


class Listener(Protocol):
    """What happens in a run, as it happens."""

    def on_start(self, options: TrainOptions, training: Training) -> None:
        """The data is there; planning begins."""
        ...

    def on_finished(self, summary: TrainSummary, plan: Plan | None) -> None:
        """The run has all its steps, so nothing is done; the plan is that which was kept."""
        ...

    def on_plan(self, plan: Plan, plan_s: float) -> None:
        """The plan is found; the step is compiled now, and then the state is made."""
        ...

    def on_state(self, state: PyTree, init_s: float) -> None:
        """The step is compiled, and the first state lies as the plan says."""
        ...

    def on_resume(self, step: int) -> None:
        """A checkpoint was restored."""
        ...

    def on_step(self, step: int, loss: float, step_s: float) -> None:
        """A step is done."""
        ...

    def on_heldout(self, step: int, loss: float) -> None:
        """The held-out text was looked at."""
        ...

    def on_measured(self, step: int, timeline: Timeline, hosts: Sequence[HostStats]) -> None:
        """A step was timed mesh by mesh, and the processes told what they did and hold."""
        ...

    def on_save(self, step: int, path: Path) -> None:
        """A checkpoint is complete."""
        ...

    def on_unsaved(self, step: int, text: str) -> None:
        """A state could not be saved, as the text says; the run goes on."""
        ...

    def on_damaged(self, step: int, path: Path, text: str) -> None:
        """A checkpoint was not taken, as the text says; it is kept at the path."""
        ...

    def on_end(self, summary: TrainSummary) -> None:
        """The run has ended, also if it fails now because its last state is not saved."""
        ...

    def on_sample(self, sample: Sample) -> None:
        """The trained model wrote a text; only of a run of one process that nobody stopped."""
        ...

    def on_unsampled(self, text: str) -> None:
        """The trained model could not write a text, for the reason given; the run is saved."""
        ...
