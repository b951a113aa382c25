"""A compiler that is built on XLA: what its targets share, and in what they differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from meshwise.cluster.mesh import DeviceSpec
from meshwise.graph.graph import Operator, Tensor
from meshwise.memory.fusion import FusionRules, instructions
from meshwise.memory.heap import heap_bytes
from meshwise.memory.live import MostLive
from meshwise.memory.local_program import Instructions, LocalProgram, LocalValue, Treatment
from meshwise.memory.order import depth_first_order
from meshwise.memory.treatment import treatment

# Dtypes of which a device may have no products: XLA converts to float32, and rounds the results.
# Source: XLA change_op_data_type.cc, float_normalization.cc.
_NARROW, _WIDE, _WIDE_BYTES = frozenset(("bfloat16", "float16")), "float32", 4


@dataclass(frozen=True, slots=True, kw_only=True)
class XlaTarget:
    """A compiler of the XLA family; it answers `memory.target.Target`.

    Attributes:
        name: Name of the target.
        margin_share: What it may need on top of the temporaries, as a share of them.
        has_barriers: Whether barriers stand until instructions have their order; else they are gone
            before fusion.
        folds_swaps: Whether a product reads a factor whose two groups of dims change places as it
            lies.
        rules: How it fuses.
        keeps_orders: Whether a transpose of a product's result is another order of dims in memory.
        scatters_pooling: Whether the gradient of a max-pooling is scattered into zeros.
        hides_rings: Whether programs compute while blocks go round a ring.
        narrows_factors: Whether float32 values that only products read lie in bfloat16.
        sums_whole_from: Of how many devices a reduce-scatter makes the whole sum first.
        has_host_memory: Whether what lies in the memory of the host takes none of a device.
    """

    name: str
    margin_share: float
    has_barriers: bool
    folds_swaps: bool
    rules: FusionRules
    keeps_orders: bool = False
    scatters_pooling: bool = False
    hides_rings: bool = False
    narrows_factors: bool = False
    sums_whole_from: float = math.inf
    has_host_memory: bool = False

    def treatment(self, op: Operator, shapes: Sequence[tuple[int, ...]]) -> Treatment:
        """Return how the compiler treats an operator without bodies."""
        return treatment(op, shapes)

    def product_itemsize(self, tensor: Tensor, device: DeviceSpec) -> int:
        """Return bytes of an element of a tensor where a dense product reads or makes it."""
        if tensor.dtype not in _NARROW:
            return tensor.itemsize
        rates = dict(device.flop_per_s)
        is_slower = rates.get(tensor.dtype, 0.0) < rates.get(_WIDE, 0.0)
        return _WIDE_BYTES if is_slower else tensor.itemsize

    def padded_elements(self, shape: Sequence[int], image: Sequence[int]) -> int:
        """Return elements of an array in memory, padding included.

        Args:
            shape: Its shape on one device.
            image: Dims of batch and features, if convolutions read or make such arrays.
        """
        del image
        return math.prod(shape)

    def spread_elements(self, image: Sequence[int], width: int) -> int:
        """Return elements of an image of few features as a convolution reads it."""
        del width
        return math.prod(image)

    def lies_transposed(self, shape: Sequence[int]) -> bool:
        """Return whether a program makes an array with its last two dims in the other order.

        Args:
            shape: Its shape on one device.
        """
        del shape
        return False

    def instructions(self, program: LocalProgram) -> Instructions:
        """Return what runs after fusion, and on which buffers."""
        return instructions(program, self.rules)

    def likely(self, tops: Sequence[MostLive]) -> Sequence[MostLive]:
        """Return the orders that the compiler may have taken, judged by what they need."""
        return tops

    def heap_bytes(self, top: MostLive) -> int:
        """Return the size of the heap in which temporaries lie."""
        return heap_bytes(top.lifetimes)

    def reported_bytes(self, heap: float, own: int) -> float:
        """Return what the compiler reports for the temporaries of a whole program."""
        del own
        return heap

    def orders(
        self, program: Instructions, values: Sequence[LocalValue]
    ) -> tuple[Sequence[int], ...]:
        """Return orders in which the instructions may run; the mean of the likely ones counts."""
        return (depth_first_order(program, values),)
