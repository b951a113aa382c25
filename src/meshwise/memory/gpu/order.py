"""The order in which XLA:GPU runs the instructions of a program.

Of three orders it takes the one of least memory, most often that of its list scheduler.  Then it
moves what hides collectives: gradients of weights, which no other product needs, run late, next to
their sums.

Source: XLA hlo_memory_scheduler.cc (ListScheduler) and latency_hiding_scheduler.cc; compared in
docs/measurements/target_memory.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshwise.memory.list_order import forerunners, list_order
from meshwise.memory.local_program import Instructions, LocalValue
from meshwise.memory.order import needed_by

# The sum of a scalar, as a loss, hides nothing.
_SCALAR_BYTES = 8


def order_with_late_sums(program: Instructions, values: Sequence[LocalValue]) -> list[int]:
    """Return positions of the instructions in the order in which they run.

    Args:
        program: The instructions.
        values: The values of the program.
    """
    before = forerunners(program)
    return list_order(program, values, before, late=_late(program, values, before))


def _late(
    program: Instructions, values: Sequence[LocalValue], before: Sequence[Sequence[int]]
) -> frozenset[int]:
    """Return the instructions that lead to sums over devices, and to no other product.

    Args:
        program: The instructions.
        values: The values of the program.
        before: For each instruction those that must run before it.
    """
    made = [values[step.value] for step in program.steps]
    products = [i for i, value in enumerate(made) if value.is_product]
    sums = [i for i, v in enumerate(made) if v.is_summed and v.num_bytes > _SCALAR_BYTES]
    return (needed_by(sums, before) | frozenset(sums)) - needed_by(products, before)
