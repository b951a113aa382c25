"""Light operators: those that a compiler fuses with others and that planning clusters."""

from __future__ import annotations

from meshwise.graph.graph import Operator

# Not dense products, but how they are split matters and their loops are not element-wise.
_ALONE = frozenset(
    "gather scatter scatter-add scatter_add scatter_mul scatter_min scatter_max sort top_k "
    "conv_general_dilated custom_call reduce_window cumsum cumprod cummax cummin "
    "cumlogsumexp approx_top_k".split()
)


def is_light(op: Operator) -> bool:
    """Return whether an operator may join a cluster of operators."""
    alone = op.heavy or op.apart or op.kind in _ALONE
    return not alone and not op.bodies and op.rule.ruled
