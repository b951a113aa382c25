"""A step in which the experts of a layer are one operator."""

from __future__ import annotations

from dataclasses import replace

from meshwise.trace.experts.match import NEEDED, matches
from meshwise.trace.replaced import replaced_step
from meshwise.trace.step import OpenStep


def with_experts(opened: OpenStep) -> OpenStep:
    """Return a step in which the experts of each layer are one operator, where they are found.

    Args:
        opened: The step as JAX traces it.
    """
    found = replaced_step(opened, matches, NEEDED)
    return opened if found is None else replace(found, joins_experts=True)
