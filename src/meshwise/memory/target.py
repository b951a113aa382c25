"""What a target's compiler is asked about memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from meshwise.cluster.mesh import DeviceSpec
from meshwise.graph.graph import Operator, Tensor
from meshwise.memory.live import MostLive
from meshwise.memory.local_program import Instructions, LocalProgram, LocalValue, Treatment


class Target(Protocol):
    """The rules by which a compiler gives memory to the program of one device.

    All of them are pure functions.  `memory.peak` asks them in this order: how each operator is
    treated, which values get a buffer, and in which order the instructions run.
    """

    @property
    def name(self) -> str:
        """Name of the target, as `cpu`."""
        ...

    @property
    def margin_share(self) -> float:
        """What the compiler may need on top of the temporaries, as a share of them."""
        ...

    @property
    def has_host_memory(self) -> bool:
        """Whether what lies in the memory of the host takes none of a device."""
        ...

    @property
    def has_barriers(self) -> bool:
        """Whether barriers stand until instructions have their order."""
        ...

    @property
    def folds_swaps(self) -> bool:
        """Whether a product reads a factor whose two groups of dims change places as it lies."""
        ...

    @property
    def keeps_orders(self) -> bool:
        """Whether a transpose of a product's result is another order of dims in memory."""
        ...

    @property
    def scatters_pooling(self) -> bool:
        """Whether the gradient of a max-pooling is scattered into zeros."""
        ...

    @property
    def hides_rings(self) -> bool:
        """Whether programs compute while blocks go round a ring."""
        ...

    @property
    def narrows_factors(self) -> bool:
        """Whether float32 values that only products read lie in bfloat16."""
        ...

    @property
    def sums_whole_from(self) -> float:
        """Of how many devices a reduce-scatter makes the whole sum, and takes a slice of it."""
        ...

    def padded_elements(self, shape: Sequence[int], image: Sequence[int]) -> int:
        """Return elements of an array in memory, padding included.

        Args:
            shape: Its shape on one device.
            image: Dims of batch and features, if convolutions read or make such arrays.
        """
        ...

    def spread_elements(self, image: Sequence[int], width: int) -> int:
        """Return elements of an image of few features as a convolution reads it.

        Args:
            image: Its sizes on one device: batch, features, and the dims of space.
            width: Size of the kernel along the last of these.
        """
        ...

    def lies_transposed(self, shape: Sequence[int]) -> bool:
        """Return whether a program makes an array with its last two dims in the other order.

        Args:
            shape: Its shape on one device.
        """
        ...

    def treatment(self, op: Operator, shapes: Sequence[tuple[int, ...]]) -> Treatment:
        """Return how the compiler treats an operator without bodies.

        Args:
            op: The operator.
            shapes: Shapes of the operands on one device, of dense products and convolutions.
        """
        ...

    def product_itemsize(self, tensor: Tensor, device: DeviceSpec) -> int:
        """Return bytes of an element of a tensor where a dense product reads or makes it."""
        ...

    def instructions(self, program: LocalProgram) -> Instructions:
        """Return what runs after fusion, and on which buffers."""
        ...

    def orders(
        self, program: Instructions, values: Sequence[LocalValue]
    ) -> tuple[Sequence[int], ...]:
        """Return orders in which the instructions may run; the mean of the likely ones counts.

        Args:
            program: The instructions.
            values: The values of the program.
        """
        ...

    def likely(self, tops: Sequence[MostLive]) -> Sequence[MostLive]:
        """Return the orders that the compiler may have taken, judged by what they need.

        Args:
            tops: The highest point of each order.
        """
        ...

    def heap_bytes(self, top: MostLive) -> int:
        """Return the size of the heap in which temporaries lie.

        Args:
            top: Their lifetimes, and what is most live.
        """
        ...

    def reported_bytes(self, heap: float, own: int) -> float:
        """Return what the compiler reports for the temporaries of a whole program.

        Args:
            heap: The size of their heap.
            own: Most bytes that are live at once in the program itself, or in a body itself.
        """
        ...
