"""XLA:CPU as a target: where programs are tested for meaning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshwise.cluster.mesh import DeviceSpec
from meshwise.graph.graph import Operator, Tensor
from meshwise.memory.cpu.fusion import instructions
from meshwise.memory.cpu.order import depth_first_order
from meshwise.memory.cpu.treatment import treatment
from meshwise.memory.local_program import Instructions, LocalProgram, LocalValue, Treatment

# Dtypes of which a device may have no products: XLA converts to float32, and rounds the results.
# Source: XLA change_op_data_type.cc, float_normalization.cc.
_NARROW, _WIDE, _WIDE_BYTES = frozenset(("bfloat16", "float16")), "float32", 4

# XLA's own order, and what it puts over what, differ in details that are not modelled: without a
# margin one of 95 programs and stages was 5.7 % too low (docs/measurements/fidelity.md).
_MARGIN_SHARE = 0.04


@dataclass(frozen=True, slots=True)
class CpuTarget:
    """The compiler XLA:CPU."""

    name: str = "cpu"
    margin_share: float = _MARGIN_SHARE

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

    def instructions(self, program: LocalProgram) -> Instructions:
        """Return what runs after fusion, and on which buffers."""
        return instructions(program)

    def order(self, program: Instructions, values: Sequence[LocalValue]) -> list[int]:
        """Return positions of the instructions in the order in which they run."""
        return depth_first_order(program, values)
