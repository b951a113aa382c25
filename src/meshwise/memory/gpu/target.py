"""XLA:GPU as a target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshwise.graph.graph import Operator
from meshwise.memory.fusion import FusionRules
from meshwise.memory.gpu.order import order_with_late_sums
from meshwise.memory.live import MostLive
from meshwise.memory.local_program import InstructionKind, Instructions, LocalValue, Treatment
from meshwise.memory.order import depth_first_order
from meshwise.memory.treatment import treatment
from meshwise.memory.xla_target import XlaTarget

# Workspaces of cuBLAS and cuDNN, and what is moved to hide a collective, are not modelled: with
# this margin one of 75 stages is more than 7 % too low (docs/measurements/target_memory.md).
_MARGIN_SHARE = 0.055
# The compiler does not take the list scheduler's order where it needs so many times the memory.
_MUCH_MORE = 1.1


@dataclass(frozen=True, slots=True, kw_only=True)
class XlaGpuTarget(XlaTarget):
    """XLA:GPU; it answers `memory.target.Target`."""

    def treatment(self, op: Operator, shapes: Sequence[tuple[int, ...]]) -> Treatment:
        """Return how the compiler treats an operator without bodies.

        Windows overlap: what is pooled has a buffer, and is not computed again in each window.
        """
        found = treatment(op, shapes)._replace(has_late_indices=True)
        if op.kind.startswith("reduce_window"):
            return found._replace(kind=InstructionKind.OPAQUE)
        return found

    def orders(
        self, program: Instructions, values: Sequence[LocalValue]
    ) -> tuple[Sequence[int], ...]:
        """Return the order of the list scheduler; with collectives another one, too.

        The compiler takes the best of three orders, and then moves what hides collectives.  For 33
        stages on H100 the order of the list scheduler, with late sums, needs 0.89 to 1.37 of what
        is compiled, the order depth first 0.95 to 1.49, both with a margin of 3 %
        (docs/measurements/target_memory.md).
        """
        found = order_with_late_sums(program, values)
        has_collectives = any(
            value.is_copy and value.kind == InstructionKind.OPAQUE for value in values
        )
        return (found, depth_first_order(program, values)) if has_collectives else (found,)

    def likely(self, tops: Sequence[MostLive]) -> Sequence[MostLive]:
        """Return the orders that the compiler may have taken, judged by what they need."""
        first, *others = tops
        if any(first.num_bytes > _MUCH_MORE * top.num_bytes for top in others):
            return others
        return tops


GPU = XlaGpuTarget(
    name="gpu",
    margin_share=_MARGIN_SHARE,
    has_barriers=True,
    folds_swaps=True,
    keeps_orders=True,
    scatters_pooling=True,
    # Source: schedules of XLA:GPU for an H100 (docs/measurements/overlap.md).
    hides_rings=True,
    has_host_memory=True,
    rules=FusionRules(by_traffic=True),
)
