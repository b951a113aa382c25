"""Refusals of the planner end at the user's call: its own frames say nothing to the user."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax

from meshwise.errors import ClusterError, InfeasibleError, PinError, PlanError

_Planned = TypeVar("_Planned")
# What a `TraceError` comes from may be the user's own code, which its frames show.
_REFUSALS = (ClusterError, InfeasibleError, PinError, PlanError)


def without_frames(plan: Callable[[], _Planned]) -> _Planned:
    """Return what a function returns, and raise its refusals without the frames below this one.

    All frames are there where JAX_TRACEBACK_FILTERING=off asks JAX for its own.

    Args:
        plan: Plans.

    Raises:
        MeshwiseError: as `plan` does.
    """
    try:
        return plan()
    except _REFUSALS as error:
        if jax.config.values["jax_traceback_filtering"] == "off":
            raise
        raise error.with_traceback(None) from None
