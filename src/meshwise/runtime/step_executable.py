"""What runs a step, whatever its plan: on one mesh, as a pipeline, or on followed stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import jax
import numpy as np
from jax.sharding import NamedSharding

from meshwise.plan.plan import Plan
from meshwise.runtime.fidelity import StageFidelity
from meshwise.runtime.host_rows import HostRows, Span
from meshwise.runtime.placement import Argument


class StepExecutable(Protocol):
    """A compiled step: flat arrays in and out."""

    @property
    def plan(self) -> Plan:
        """Its plan."""
        ...

    @property
    def out_tree(self) -> Any:
        """The tree of the results."""
        ...

    @property
    def in_shardings(self) -> Sequence[NamedSharding | None]:
        """Where each flat argument lives between steps; None for one that may be anywhere."""
        ...

    @property
    def compile_s(self) -> float:
        """Seconds that lowering and compilation took."""
        ...

    def rows_here(self, position: int, dim: int) -> tuple[Span, ...]:
        """Return the rows of a batch leaf that devices of this process take, and no others.

        Args:
            position: Its position among the flat arguments.
            dim: Its batch dim.
        """
        ...

    def ready(self, position: int, leaf: HostRows | np.ndarray[Any, Any]) -> Argument:
        """Return a batch leaf as `run` takes it soonest: on its devices, if a step reads it whole.

        No other process takes part.

        Args:
            position: Its position among the flat arguments.
            leaf: The rows that `rows_here` names.

        Raises:
            DataError: rows are absent.
        """
        ...

    def place(self, leaves: Sequence[Argument]) -> Sequence[Argument]:
        """Return arguments where the step wants them when it begins.

        Args:
            leaves: The flat arguments.

        Raises:
            StateLostError: an argument was donated to an earlier call.
            DataError: rows that devices of this process take are not in it.
        """
        ...

    def run(self, leaves: Sequence[Argument]) -> Sequence[jax.Array]:
        """Run a step.

        Args:
            leaves: The flat arguments, as `place` returns them.

        Returns:
            The flat results.

        Raises:
            StateLostError: an argument was donated to an earlier call, or the step failed after it
                had taken over donated state.
            TypeError: arguments have other shapes or dtypes; nothing was done with them.
        """
        ...

    def compiled_text(self) -> dict[str, str]:
        """Return the optimised HLO of each program, by name."""
        ...

    def measured_peak_bytes(self) -> int:
        """Return the memory of the worst device as XLA reports it, in bytes."""
        ...

    def traffic(self) -> dict[str, float]:
        """Return what passes between meshes in a step, by name with its unit."""
        ...

    def fidelity(self) -> tuple[StageFidelity, ...]:
        """Return for each stage what was predicted, and what was compiled."""
        ...
