"""XLA:TPU as a target."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from meshwise.graph.graph import Operator
from meshwise.memory.fusion import FusionRules, instructions
from meshwise.memory.list_order import forerunners, list_order
from meshwise.memory.live import MostLive
from meshwise.memory.local_program import (
    InstructionKind,
    Instructions,
    LocalProgram,
    LocalValue,
    Treatment,
)
from meshwise.memory.order import depth_first_order
from meshwise.memory.tpu.copies import with_copied_arguments
from meshwise.memory.tpu.heap import mean_heap_bytes
from meshwise.memory.tpu.sums import with_joint_sums
from meshwise.memory.treatment import treatment
from meshwise.memory.xla_target import XlaTarget

# Gaps of the heap depend on details of the order that are not modelled: without a margin one of 24
# stages was 7 % too low, with 4 % two of eight stages that came later were 8 and 11 % too low
# (docs/measurements/target_memory.md).
_MARGIN_SHARE = 0.06
# Scatters whose rule has a loop over updates where two of them may meet.
_SUMMED = frozenset(("scatter-add", "scatter-sub"))
# A tile has 128 lanes, along the features of an image or along its batch; then features fill up
# rows by fours, as `bf16[224,8,32,3,7]` with the tile (4,128) shows.
_LANES, _ROWS = 128, 4
# Columns of an image of few features that lie along the lanes at once.
_COLUMNS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class XlaTpuTarget(XlaTarget):
    """XLA:TPU; it answers `memory.target.Target`.

    Attributes:
        hides_gathers: Whether other work runs while values are sent between devices.
    """

    hides_gathers: bool = True

    def instructions(self, program: LocalProgram) -> Instructions:
        """Return what runs after fusion, and on which buffers."""
        made = instructions(program, self.rules)
        made = with_copied_arguments(made, program.values, program.aliases)
        return with_joint_sums(made, program.values)

    def orders(
        self, program: Instructions, values: Sequence[LocalValue]
    ) -> tuple[Sequence[int], ...]:
        """Return the order in which the instructions run.

        It is that of the list scheduler, unless products run while values are sent between
        devices: then gradients of weights run late, as they do depth first.  In a loop they are
        only added up, and run at once; those of convolutions do, too.
        """
        made = [values[step.value] for step in program.steps]
        is_late = self.hides_gathers and any(value.is_sent for value in made)
        if is_late and not program.is_body and not any(value.is_convolution for value in made):
            return (depth_first_order(program, values),)
        # What reads nothing, as the zeros into which gradients are scattered, is made when wanted.
        wanted = frozenset(
            i for i, step in enumerate(program.steps) if not (step.reads or step.after)
        )
        return (list_order(program, values, forerunners(program), wanted=wanted),)

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

    def spread_elements(self, image: Sequence[int], width: int) -> int:
        """Return elements of an image of few features as a convolution reads it.

        Of its width a part lies along the lanes beside the batch, once for each column of the
        kernel: an image of 224 x 224 is `bf16[224,32,32,3,7]` for a batch of 4 and a kernel of 7.
        """
        *height, across = image[2:]
        elements = math.prod(height) * _filled(-(-across // _COLUMNS), _COLUMNS) * width
        # In the gradient of a kernel batch and features change places.
        return elements * min(
            _filled(batch * _COLUMNS, _LANES) * _filled(features, _ROWS)
            for batch, features in (image[:2], image[1::-1])
        )

    def lies_transposed(self, shape: Sequence[int]) -> bool:
        """Return whether only the dim before the last one fills up lanes: it lies along them."""
        return len(shape) > 1 and shape[-1] % _LANES != 0 and shape[-2] % _LANES == 0

    def heap_bytes(self, top: MostLive) -> int:
        """Return the size of the heap in which temporaries lie."""
        return mean_heap_bytes(top.lifetimes)

    def reported_bytes(self, heap: float, own: int) -> float:
        """Return what the compiler reports: the heap, and what of it is never live at once.

        It looks for that in each body by itself, so that in a program with a loop what is live in
        one of the two counts twice.
        """
        return 2 * heap - own


TPU = XlaTpuTarget(
    name="tpu",
    margin_share=_MARGIN_SHARE,
    has_barriers=True,
    folds_swaps=True,
    narrows_factors=True,
    rules=FusionRules(by_traffic=True, into_products=True),
)
# It reads memory faster than a v5e, measured by its arithmetic, and keeps what another one computes
# again.  Nothing runs while its chips exchange values; over 8 of them, two hosts, a reduce-scatter
# is an all-reduce and a slice.
TPU_V5P = replace(
    TPU,
    name="tpu-v5p",
    hides_gathers=False,
    sums_whole_from=8,
    rules=FusionRules(by_traffic=True, into_products=True, keeps_rounded=True),
)


def _filled(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
