"""Light operators: those that a compiler fuses with others and that planning clusters."""

from __future__ import annotations

from meshwise.graph.graph import Operator

# Not dense products, but how they are split matters and their loops are not element-wise.
ALONE = frozenset(
    "gather scatter scatter-add scatter-sub scatter-mul scatter-min scatter-max sort top_k "
    "conv_general_dilated cumsum cumprod cummax cummin cumlogsumexp approx_top_k".split()
)


def is_light(op: Operator) -> bool:
    """Return whether an operator may join a cluster of operators."""
    alone = op.heavy or op.apart or op.kind in ALONE
    return not alone and not op.bodies and op.rule.ruled
