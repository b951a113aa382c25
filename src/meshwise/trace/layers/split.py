"""A step taken apart at its loss: the forward pass, and the update that follows the gradients.

    forward   arguments -> value and auxiliary results of the loss, what it was differentiated for
    update    arguments, value and auxiliary results, gradients -> results of the step

Source: docs/decisions/0020.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meshwise.errors import TraceError
from meshwise.trace.layers.equations import (
    dependent,
    inlined,
    needed,
    read,
    run,
    run_inlined,
    traced,
    variables,
)
from meshwise.trace.loss import call_line

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
            auxiliary results, and one gradient for each root.  Auxiliary results that do not
            depend on both parameters and batch it makes itself of the arguments.
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
        places = "; ".join(call_line(eqn) for eqn in losses) or "none"
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
    first = traced(forward, flat.in_avals)
    apart = _made_apart(first, num_values, batch_dims)

    def update(*operands: Any) -> list[Any]:
        count = len(jaxpr.invars)
        known = environment(operands[:count])
        rest = iter(operands[count:])
        known.update((v, next(rest)) for v in (*loss.outvars[:num_values], *gradients))
        known.update((loss.outvars[k], x) for k, x in _run_apart(first, apart, operands[:count]))
        run(after, known)
        return [read(known, v) for v in jaxpr.outvars]

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


def _made_apart(forward: Any, num_values: int, batch_dims: Mapping[int, int]) -> list[int]:
    """Auxiliary results (numbers among the values) that no layer makes.

    A layer makes what depends on both parameters and batch; constants, counters, masks it does not.
    """
    jaxpr = forward.jaxpr
    varied = dependent(jaxpr.eqns, jaxpr.outvars[num_values:])
    batch = dependent(jaxpr.eqns, [jaxpr.invars[i] for i in batch_dims])
    made = {v for e in jaxpr.eqns for v in e.outvars if v in varied and v in batch}
    return [k for k in range(1, num_values) if made.isdisjoint(variables([jaxpr.outvars[k]]))]


def _run_apart(
    forward: Any, apart: Sequence[int], arguments: Sequence[Any]
) -> Iterator[tuple[int, Any]]:
    """Values of the loss that no layer makes, by number."""
    jaxpr = forward.jaxpr
    known = dict(zip(jaxpr.constvars, forward.consts, strict=True))
    known.update(zip(jaxpr.invars, arguments, strict=True))
    run(needed(jaxpr.eqns, variables(jaxpr.outvars[k] for k in apart)), known)
    for k in apart:
        yield k, read(known, jaxpr.outvars[k])
