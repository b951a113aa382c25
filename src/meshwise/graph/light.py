"""What a compiler does with an operator by its name: fuses it with others, or emits nothing."""

from __future__ import annotations

from meshwise.graph.graph import Operator

# Not dense products, but how they are split matters and their loops are not element-wise.
ALONE = frozenset(
    "gather scatter scatter-add scatter-sub scatter-mul scatter-min scatter-max sort top_k "
    "conv_general_dilated cumsum cumprod cummax cummin cumlogsumexp approx_top_k".split()
)
# The result is the buffer of the operand, for XLA removes copies and reads other shapes in place.
_BITCASTS = frozenset(
    ("reshape", "squeeze", "expand_dims", "optimization_barrier", "copy", "stop_gradient")
)


def is_light(op: Operator) -> bool:
    """Return whether an operator may join a cluster of operators: compilers fuse it with others."""
    alone = op.heavy or op.apart or op.kind in ALONE
    return not alone and not op.bodies and op.rule.ruled


def is_bitcast(op: Operator) -> bool:
    """Return whether the result is the operand, read with another shape or the same.

    Args:
        op: The operator.
    """
    return op.kind in _BITCASTS
