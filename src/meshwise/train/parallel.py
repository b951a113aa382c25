"""What the loop needs of a parallelised step: a part of the public API, as a protocol.

`train/build.py` gives the real thing.  Tests give a double that runs under plain `jax.jit`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import jax

from meshwise.jax_compat.jaxprs import PyTree
from meshwise.plan.plan import Plan
from meshwise.runtime.fidelity import StageFidelity
from meshwise.simulate.timeline import Timeline
from meshwise.train.step import Batch

# `(state, batch) -> (state, result)`.
TrainStep = Callable[[PyTree, PyTree], tuple[PyTree, PyTree]]


class ParallelTrainStep(Protocol):
    """A parallelised training step."""

    def __call__(self, state: PyTree, batch: PyTree, /) -> tuple[PyTree, PyTree]:
        """Run one step."""
        ...

    def plan(self, state: PyTree, batch: PyTree, /) -> Plan:
        """Return the plan for these shapes."""
        ...

    def init(
        self, create_state: Callable[[PyTree], PyTree], seed: PyTree, batch: PyTree, /
    ) -> PyTree:
        """Return the first state, born in the layouts of the plan."""
        ...

    def measured(self, state: PyTree, batch: PyTree, /) -> tuple[tuple[PyTree, PyTree], Timeline]:
        """Run one step with a clock beside it."""
        ...

    def fidelity(self, state: PyTree, batch: PyTree, /) -> tuple[StageFidelity, ...]:
        """For each stage memory and collectives as predicted, and as compiled."""
        ...

    def stats(self) -> Mapping[str, Any]:
        """Return what is known of the last step; `hosts` has the `HostStats` of all processes."""
        ...

    def saved(self, checkpoint: Path, /) -> None:
        """Say where the state was last saved, for the error that tells that it is lost."""
        ...


class StepBuilder(Protocol):
    """Parallelises a training step."""

    def __call__(self, train_step: TrainStep, plan: Plan | None = None, /) -> ParallelTrainStep:
        """Return the step, with a plan that was found before, if one is given."""
        ...


HeldoutLoss = Callable[[PyTree, Batch], jax.Array]
# Parallelises a loss without gradients after the plan of a step whose parameters it takes.
Follow = Callable[[Plan, HeldoutLoss], HeldoutLoss]
