"""XLA:CPU as a target: where programs are tested for meaning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshwise.cluster.mesh import DeviceSpec
from meshwise.graph.graph import Operator, Tensor
from meshwise.memory.cpu.treatment import treatment
from meshwise.memory.fusion import FusionRules, instructions
from meshwise.memory.local_program import Instructions, LocalProgram, LocalValue, Treatment
from meshwise.memory.order import depth_first_order
from meshwise.memory.target import product_itemsize

# XLA's own order, and what it puts over what, differ in details that are not modelled: without a
# margin one of 95 programs and stages was 5.7 % too low (docs/measurements/fidelity.md).
_MARGIN_SHARE = 0.04

_RULES = FusionRules(by_traffic=False)


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
        return product_itemsize(tensor, device)

    def instructions(self, program: LocalProgram) -> Instructions:
        """Return what runs after fusion, and on which buffers."""
        return instructions(program, _RULES)

    def orders(
        self, program: Instructions, values: Sequence[LocalValue]
    ) -> tuple[Sequence[int], ...]:
        """Return orders of the instructions, of which the compiler takes that of least memory."""
        return (depth_first_order(program, values),)
