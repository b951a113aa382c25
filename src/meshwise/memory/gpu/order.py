"""The order in which XLA:GPU runs the instructions of a program.

Of three orders it takes the one of least memory, most often that of its list scheduler.  Then it
moves what hides collectives: gradients of weights, which no other product needs, run late, next to
their sums.

Source: XLA hlo_memory_scheduler.cc (ListScheduler) and latency_hiding_scheduler.cc; compared in
docs/measurements/target_memory.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshwise.memory.list_order import list_order, walk
from meshwise.memory.local_program import Instructions, LocalValue

# The sum of a scalar, as a loss, hides nothing.
_SCALAR_BYTES = 8


def order_with_late_sums(program: Instructions, values: Sequence[LocalValue]) -> list[int]:
    """Return positions of the instructions in the order in which they run.

    Args:
        program: The instructions.
        values: The values of the program.
    """
    order, before = walk(program)
    late = _late(order, before, [values[step.value] for step in program.steps])
    return list_order(program, values, before, late=late)


def _late(
    order: Sequence[int], before: Sequence[Sequence[int]], values: Sequence[LocalValue]
) -> frozenset[int]:
    """Return the instructions that lead to sums over devices, and to no other product.

    Args:
        order: The instructions in an order in which they could run.
        before: For each instruction those that must run before it.
        values: For each instruction the value for which it stands.
    """
    feeds_product = [False] * len(before)
    feeds_sum = [value.is_summed and value.num_bytes > _SCALAR_BYTES for value in values]
    for i in reversed(order):
        for j in before[i]:
            feeds_product[j] |= feeds_product[i] or values[i].is_product
            feeds_sum[j] |= feeds_sum[i]
    return frozenset(i for i in order if feeds_sum[i] and not feeds_product[i])
