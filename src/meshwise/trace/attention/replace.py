"""A step in which attention is one operator."""

from __future__ import annotations

from meshwise.trace.attention.match import NEEDED, matches
from meshwise.trace.replaced import replaced_step
from meshwise.trace.step import OpenStep


def with_attention(opened: OpenStep) -> OpenStep | None:
    """Return a step in which each attention that is found is one operator.

    Args:
        opened: The step as JAX traces it.

    Returns:
        The step; None if no attention is found.
    """
    return replaced_step(opened, matches, NEEDED)
