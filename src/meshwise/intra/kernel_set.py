"""Compile the kernels of the planner for one mesh ahead of time."""

from __future__ import annotations

from meshwise.intra.placement import Lifetime, heap_bytes
from meshwise.kernels.background import KernelSet

KERNELS = KernelSet(package="intra", module=__name__, parts=("compile_heap",))


def compile_heap() -> None:
    """Compile the placement of values in a heap, by placing one."""
    heap_bytes([Lifetime(num_bytes=1, start=0, ends=(1,))])
