"""A step taken apart at its loss: the forward pass, and the update that follows the gradients.

    forward   arguments -> value and auxiliary results of the loss, what it was differentiated for
    update    arguments, value and auxiliary results, gradients -> results of the step

Source: DESIGN decision 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshwise.errors import TraceError
from meshwise.jax_compat import source_line
from meshwise.trace.layers.equations import (
    inlined,
    needed,
    read,
    run,
    run_inlined,
    traced,
    variables,
)

LOSS = "loss_and_grad"


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitStep:
    """A step, its loss and its update, as flat jaxprs.

    Attributes:
        forward: Closed jaxpr; its arguments are those of the step.  Results: the value of the loss
            and `num_aux` auxiliary ones, `num_roots` values that the loss is differentiated for.
        num_aux: Auxiliary results of the loss.
        num_roots: Values that the loss is differentiated for: the parameters.
        update: Closed jaxpr; takes the arguments of the step, the value of the loss and its
            auxiliary results, and one gradient for each root.
        batch_dims: Batch dim of each argument that is batch data, by position.
        aliases: Pairs (argument, result) of the state.
        names: Of the arguments.
    """

    forward: Any
    num_aux: int
    num_roots: int
    update: Any
    batch_dims: Mapping[int, int]
    aliases: tuple[tuple[int, int], ...]
    names: tuple[str, ...]

    @property
    def in_avals(self) -> tuple[Any, ...]:
        """Of the arguments."""
        return tuple(self.forward.in_avals)

    @property
    def roots(self) -> tuple[Any, ...]:
        """Variables of `forward` that the loss is differentiated for."""
        return tuple(self.forward.jaxpr.outvars[1 + self.num_aux :][: self.num_roots])


def split_step(
    closed: Any,
    batch_dims: Mapping[int, int],
    aliases: tuple[tuple[int, int], ...],
    names: tuple[str, ...],
) -> SplitStep:
    """Take a traced step apart.

    Args:
        closed: Its jaxpr, with the loss as one equation.
        batch_dims: Batch dim of each argument that is batch data, by position.
        aliases: Pairs (argument, result) of the state.
        names: Of the arguments.

    Raises:
        TraceError: there is no loss, more than one, or the loss depends on another loss.
    """
    flat = inlined(closed)
    jaxpr = flat.jaxpr
    losses = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == LOSS]
    if len(losses) != 1:
        places = "; ".join(source_line(eqn.source_info) for eqn in losses) or "none"
        raise TraceError(
            f"a step that is cut into stages has one loss, differentiated with mw.value_and_grad; "
            f"this one has {len(losses)} ({places})"
        )
    (loss,) = losses
    others = [e for e in jaxpr.eqns if e is not loss]
    # What both sides need of the arguments, each makes for itself.
    before, after = needed(others, variables(loss.invars)), needed(others, variables(jaxpr.outvars))
    body, wrt = loss.params["loss"], loss.params["wrt"]

    def environment(operands: Any) -> dict[Any, Any]:
        known = dict(zip(jaxpr.constvars, flat.consts, strict=True))
        known.update(zip(jaxpr.invars, operands, strict=True))
        return known

    def forward(*operands: Any) -> list[Any]:
        known = environment(operands)
        run(before, known)
        taken = [read(known, v) for v in loss.invars]
        outs = run_inlined(body, taken)
        return [*outs, *(taken[i] for i in wrt)]

    num_values = len(body.out_avals)
    gradients = loss.outvars[num_values:]

    def update(*operands: Any) -> list[Any]:
        count = len(jaxpr.invars)
        known = environment(operands[:count])
        rest = iter(operands[count:])
        known.update((v, next(rest)) for v in (*loss.outvars[:num_values], *gradients))
        run(after, known)
        return [read(known, v) for v in jaxpr.outvars]

    first = traced(forward, flat.in_avals)
    values = [v.aval for v in (*loss.outvars[:num_values], *gradients)]
    return SplitStep(
        forward=first,
        num_aux=num_values - 1,
        num_roots=len(wrt),
        update=traced(update, [*flat.in_avals, *values]),
        batch_dims=dict(batch_dims),
        aliases=aliases,
        names=names,
    )
