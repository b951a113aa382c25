"""Values without an argument among their ancestors, made in whatever layout is wanted.

Source: docs/decisions/0002, rule 6: without it XLA folds or hoists collectives on constants, and
intention and compiled program differ.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshwise.graph.halo import edges
from meshwise.graph.layout import Layout
from meshwise.graph.loops import (
    NONE,
    LoopRule,
    Strategy,
    is_feasible,
    operand_layouts,
    result_layouts,
)
from meshwise.graph.sends import waits_for_all


def strategy_for_result(
    rule: LoopRule, index: int, wanted: Layout, sizes: Sequence[int]
) -> tuple[Strategy, tuple[Layout, ...]] | None:
    """Return a strategy that leaves a result in a split layout.

    Args:
        rule: The loops of the operator.
        index: Position of the result.
        wanted: The layout of the result.
        sizes: Sizes of the mesh axes.

    Returns:
        The strategy and the layouts of its operands; None if the loops do not allow it without
        communication, so that the value is made whole and sliced.
    """
    strategy = [NONE] * len(sizes)
    for loops, axes in zip(rule.results[index], wanted.dims, strict=True):
        rest = list(axes)
        for loop in loops:
            parts = 1
            while rest and rule.loops[loop].size % (parts * sizes[rest[0]]) == 0:
                axis = rest.pop(0)
                parts *= sizes[axis]
                strategy[axis] = loop
            if rest and parts != rule.loops[loop].size:
                return None
        if rest:
            return None
    chosen = tuple(strategy)
    if not is_feasible(rule, chosen, sizes) or any(edges(rule, chosen, sizes)):
        return None
    if waits_for_all(rule, chosen, sizes):
        return None
    results = result_layouts(rule, chosen, sizes)
    operands = operand_layouts(rule, chosen, sizes)
    if results is None or operands is None or results[index] != wanted:
        return None
    return chosen, operands
