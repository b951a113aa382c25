"""XLA:TPU as a target."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from meshwise.graph.graph import Operator
from meshwise.memory.fusion import FusionRules
from meshwise.memory.live import MostLive
from meshwise.memory.local_program import InstructionKind, Treatment
from meshwise.memory.tpu.heap import reported_bytes
from meshwise.memory.treatment import treatment
from meshwise.memory.xla_target import XlaTarget

# Gaps of the heap depend on details of the order that are not modelled: with a margin of 3 %
# 13 of 16 stages lie within 0.95 and 1.20 of the compiled ones, with this one 14
# (docs/measurements/target_memory.md).
_MARGIN_SHARE = 0.06
# Scatters whose rule has a loop over updates where two of them may meet.
_SUMMED = frozenset(("scatter-add", "scatter-sub"))
# A tile has 128 lanes, along the features of an image or along its batch; then features fill up
# rows by fours, as `bf16[224,8,32,3,7]` with the tile (4,128) shows.
_LANES, _ROWS = 128, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class XlaTpuTarget(XlaTarget):
    """XLA:TPU; it answers `memory.target.Target`."""

    def treatment(self, op: Operator, shapes: Sequence[tuple[int, ...]]) -> Treatment:
        """Return how the compiler treats an operator without bodies.

        Convolutions read images in any layout, the gradient of a max-pooling is one operator, and
        a gather needs its operand in memory.  A scatter of which no two updates meet, as that of
        the gradient of a cross-entropy, is a comparison of indices.
        """
        found = treatment(op, shapes)
        if op.kind == "gather":
            return found._replace(kind=InstructionKind.OPAQUE)
        loops = op.rule.loops
        if op.kind in _SUMMED and loops and all(x.kind == "parallel" for x in loops):
            return Treatment(kind=InstructionKind.FUSIBLE)
        if op.dim_orders or op.kind == "select_and_scatter_add":
            return Treatment(kind=InstructionKind.OPAQUE)
        return found

    def padded_elements(self, shape: Sequence[int], image: Sequence[int]) -> int:
        """Return elements of an array in memory: features or batch of an image fill up lanes."""
        count = math.prod(shape)
        if not image or not count:
            return count
        batch, features = image
        rest = count // (shape[batch] * shape[features])
        return rest * min(
            shape[batch] * _filled(shape[features], _LANES),
            _filled(shape[batch], _LANES) * _filled(shape[features], _ROWS),
        )

    def lies_transposed(self, shape: Sequence[int]) -> bool:
        """Return whether only the dim before the last one fills up lanes: it lies along them."""
        return len(shape) > 1 and shape[-1] % _LANES != 0 and shape[-2] % _LANES == 0

    def heap_bytes(self, top: MostLive) -> int:
        """Return the size of the heap of the temporaries, as the compiler reports it."""
        return reported_bytes(top.lifetimes)


TPU = XlaTpuTarget(
    name="tpu",
    margin_share=_MARGIN_SHARE,
    has_barriers=True,
    folds_swaps=True,
    narrows_factors=True,
    rules=FusionRules(by_traffic=True, into_products=True),
)
# Of the generations that were compiled for, it reads memory fastest, measured by its arithmetic.
TPU_V5P = replace(
    TPU, name="tpu-v5p", rules=FusionRules(by_traffic=True, into_products=True, keeps_rounded=True)
)


def _filled(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
