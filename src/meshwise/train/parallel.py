"""What the loop needs of a parallelised step: a part of the public API, as a protocol.

`train/build.py` gives the real thing.  Tests give a double that runs under plain `jax.jit`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax

from meshwise.plan.plan import Plan
from meshwise.train.step import Batch, TrainState

TrainStep = Callable[[TrainState, Batch], tuple[TrainState, jax.Array]]


class ParallelTrainStep(Protocol):
    """A parallelised training step."""

    def __call__(self, state: TrainState, batch: Batch, /) -> tuple[TrainState, jax.Array]:
        """Run one step."""
        ...

    def plan(self, state: Any, batch: Any, /) -> Plan:
        """The plan for these shapes."""
        ...

    def init(
        self, create_state: Callable[[jax.Array], TrainState], key: jax.Array, batch: Batch, /
    ) -> TrainState:
        """The first state, born in the layouts of the plan."""
        ...

    def compiled_text(self, state: Any, batch: Any, /) -> Mapping[str, str]:
        """Optimised HLO of each program, by name."""
        ...

    def measured_peak_bytes(self, state: Any, batch: Any, /) -> int:
        """Memory of the fullest device, as XLA reports it for the compiled step."""
        ...


StepBuilder = Callable[[TrainStep], ParallelTrainStep]
