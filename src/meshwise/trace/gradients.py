"""How a step differentiates: with our `value_and_grad`, which can be cut into stages, or JAX's."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator
from pathlib import PurePath

from meshwise.errors import PlanError, TraceError
from meshwise.jax_compat import ClosedJaxpr, Eqn, FlatJaxpr, SourceInfo, bodies, gradient_call

_PLAIN = re.compile(r"\bjax\.(value_and_grad|grad)\b")


def refuse_stages(closed: ClosedJaxpr, asked: str) -> None:
    """Say what keeps a step from being cut into pipeline stages.

    Args:
        closed: Jaxpr of the step.
        asked: What asks for stages, as `Megatron(dp=2, tp=1, pp=2)`.

    Raises:
        TraceError: the step differentiates with JAX's own function; the message shows the line to
            change.
        PlanError: it is marked as it should be, but only `Auto` runs in stages.
    """
    equations = list(_equations(closed.jaxpr))
    if any(eqn.primitive.name == "loss_and_grad" for eqn, _ in equations):
        raise PlanError(
            f"{asked}: of the methods only Auto runs in stages; use mw.Auto(stages=...), or one "
            "stage"
        )
    found = next(
        filter(None, (gradient_call(eqn.source_info, around) for eqn, around in equations)), None
    )
    if found is None:
        raise TraceError(
            f"{asked} asks for pipeline stages, but the step has no gradient that could be cut; "
            "differentiate the loss with mw.value_and_grad, or use one stage"
        )
    path, line, function = found
    code = linecache.getline(path, line).strip()
    changed = _PLAIN.sub(r"mw.\1", code)
    to_write = f"write `{changed}`" if changed != code else "take it from meshwise"
    raise TraceError(
        f"{asked} asks for pipeline stages, but the step differentiates with JAX's own function "
        f"at {PurePath(path).name}:{line} ({function.replace('<locals>.', '')}): `{code}`; only "
        f"mw.value_and_grad and mw.grad mark the loss so that it can be cut: {to_write}, or use "
        "one stage"
    )


def _equations(
    jaxpr: FlatJaxpr, around: tuple[SourceInfo, ...] = ()
) -> Iterator[tuple[Eqn, tuple[SourceInfo, ...]]]:
    """Equations, with the sources of those whose bodies hold them."""
    for eqn in jaxpr.eqns:
        yield eqn, around
        for inner in bodies(eqn.params):
            yield from _equations(inner, (eqn.source_info, *around))
