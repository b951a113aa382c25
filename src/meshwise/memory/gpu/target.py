"""XLA:GPU as a target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshwise.cluster.mesh import DeviceSpec
from meshwise.graph.graph import Operator, Tensor
from meshwise.memory.cpu.treatment import treatment
from meshwise.memory.fusion import FusionRules, instructions
from meshwise.memory.local_program import Instructions, LocalProgram, LocalValue, Treatment
from meshwise.memory.order import depth_first_order, list_order, post_order
from meshwise.memory.target import product_itemsize

_RULES = FusionRules(by_traffic=True)

# Workspaces of cuBLAS and cuDNN, and what is moved to hide a collective, are not modelled: without
# a margin 3 of 66 stages were more than 7 % too low (docs/measurements/target_memory.md).
_MARGIN_SHARE = 0.03


@dataclass(frozen=True, slots=True)
class GpuTarget:
    """The compiler XLA:GPU."""

    name: str = "gpu"
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
        return (
            depth_first_order(program, values),
            post_order(program),
            list_order(program, values),
        )
