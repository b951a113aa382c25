"""What the loop needs of a parallelised step: the public API, as a protocol.

`build_step` gives the real thing.  Tests give a double that runs under plain `jax.jit`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax

from meshwise.train.step import Batch, TrainState

TrainStep = Callable[[TrainState, Batch], tuple[TrainState, jax.Array]]


class PlannedCollective(Protocol):
    """One record of `Plan.collectives`."""

    @property
    def kind(self) -> str:
        """As `all-reduce`."""
        ...

    @property
    def num_bytes(self) -> int:
        """Bytes of the tensor as its group sees it whole."""
        ...

    @property
    def count(self) -> int:
        """How often in a step."""
        ...


class PlanView(Protocol):
    """The part of `Plan` that a run shows."""

    @property
    def step_time_s(self) -> float:
        """Predicted time of a step."""
        ...

    @property
    def peak_bytes(self) -> int:
        """Predicted memory of the fullest device."""
        ...

    @property
    def collectives(self) -> Sequence[PlannedCollective]:
        """What is communicated in a step."""
        ...

    def explain(self) -> str:
        """The plan in words and tables."""
        ...

    def to_json(self) -> str:
        """The plan as text that reads back."""
        ...


class ParallelStep(Protocol):
    """A parallelised training step."""

    def __call__(self, state: TrainState, batch: Batch, /) -> tuple[TrainState, jax.Array]:
        """Run one step."""
        ...

    def plan(self, state: Any, batch: Any, /) -> PlanView:
        """The plan for these shapes."""
        ...

    def init(
        self, create_state: Callable[[jax.Array], TrainState], key: jax.Array, /
    ) -> TrainState:
        """The first state, born in the layouts of the plan."""
        ...

    def compiled_text(self, state: Any, batch: Any, /) -> Mapping[str, str]:
        """Optimised HLO of each program, by name."""
        ...

    def measured_peak_bytes(self, state: Any, batch: Any, /) -> int:
        """Memory of the fullest device, as XLA reports it for the compiled step."""
        ...


StepBuilder = Callable[[TrainStep], ParallelStep]
