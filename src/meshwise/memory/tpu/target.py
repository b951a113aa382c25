"""XLA:TPU as a target."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from meshwise.graph.graph import Operator
from meshwise.memory.fusion import FusionRules
from meshwise.memory.live import MostLive
from meshwise.memory.local_program import (
    InstructionKind,
    Instructions,
    LocalProgram,
    LocalValue,
    Treatment,
)
from meshwise.memory.order import depth_first_order
from meshwise.memory.tpu.heap import reported_bytes
from meshwise.memory.tpu.order import gathers_first
from meshwise.memory.tpu.sums import with_joint_sums
from meshwise.memory.treatment import treatment
from meshwise.memory.xla_target import XlaTarget

_MARGIN_SHARE = 0.0
_LANES = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class TpuTarget(XlaTarget):
    """XLA:TPU; it answers `memory.target.Target`."""

    def treatment(self, op: Operator, shapes: Sequence[tuple[int, ...]]) -> Treatment:
        """Return how the compiler treats an operator without bodies.

        Products and convolutions read their operands in any layout.  A gather needs its operand in
        memory; a scatter of which no two updates meet is a comparison of indices.
        """
        found = treatment(op, shapes)
        if op.kind == "gather":
            return found._replace(kind=InstructionKind.OPAQUE)
        if op.kind.startswith("scatter") and all(x.kind == "parallel" for x in op.rule.loops):
            return Treatment(kind=InstructionKind.FUSIBLE)
        if op.kind == "select_and_scatter_add":
            return Treatment(kind=InstructionKind.OPAQUE)
        if op.dim_orders:
            return Treatment(kind=InstructionKind.OPAQUE)
        return found

    def padded_elements(self, shape: Sequence[int], image: Sequence[int]) -> int:
        """Return elements of an array in memory: features or batch of images fill up lanes."""
        count = math.prod(shape)
        if not image or not count:
            return count
        return min(count // shape[d] * (-(-shape[d] // _LANES) * _LANES) for d in image)

    def instructions(self, program: LocalProgram) -> Instructions:
        """Return what runs after fusion, and on which buffers."""
        return with_joint_sums(program, XlaTarget.instructions(self, program))

    def order(self, program: Instructions, values: Sequence[LocalValue]) -> Sequence[int]:
        """Return the order in which the instructions run: what a step returns beside state last."""
        order = depth_first_order(program, values, state_first=True)
        return gathers_first(program, values, order)

    def heap_bytes(self, top: MostLive) -> int:
        """Return the size of the heap of the temporaries, as the compiler reports it."""
        return reported_bytes(top.lifetimes)


TPU = TpuTarget(
    name="tpu",
    margin_share=_MARGIN_SHARE,
    has_barriers=True,
    folds_swaps=True,
    narrows_factors=True,
    sums_in_place=True,
    least_whole_group=8,
    rules=FusionRules(by_traffic=True, into_products=True),
)
