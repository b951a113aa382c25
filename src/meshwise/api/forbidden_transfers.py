"""Calls under `jax.transfer_guard`: a plan may make its transfers, NumPy arrays are refused."""

from __future__ import annotations

import jax

from meshwise.api.arguments import Binding, Call
from meshwise.api.same_arguments import argument_leaves
from meshwise.errors import CallError, PlanError
from meshwise.jax_compat.contexts import transfer_guards

_EXPLICIT = "disallow_explicit"


def check_transfers(binding: Binding, call: Call, name: str, *, has_stages: bool) -> None:
    """Check that a call needs no transfer that is forbidden.

    Args:
        binding: How the call is taken apart.
        call: The arguments.
        name: The name of the step.
        has_stages: Whether the step passes tensors between meshes.

    Raises:
        CallError: an argument is in the memory of the host, and the guard forbids to move it.
        PlanError: the step has stages, and the guard forbids the transfers of its plan too.
    """
    guards = transfer_guards()
    if has_stages and _EXPLICIT in guards:
        raise PlanError(
            f"{name} has stages, which pass tensors to each other, and jax.transfer_guard"
            f"({_EXPLICIT!r}) forbids all transfers; use 'disallow', which lets a step have those "
            "of its plan"
        )
    if guards[0] not in ("disallow", _EXPLICIT):
        return
    for label, leaf in argument_leaves(binding, call):
        # Subclasses of `jax.ShapeDtypeStruct` stand for rows that a loader was asked for.
        if not isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
            raise CallError(
                f"{label} of {name} is in the memory of the host ({type(leaf).__name__}), and "
                f"jax.transfer_guard({guards[0]!r}) forbids that a call moves it; call "
                "jax.device_put before, or use step.loader"
            )
