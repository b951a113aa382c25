"""A step taken apart at its loss: the forward pass, and the update that follows the gradients.

    forward   arguments -> value and auxiliary results of the loss, what it was differentiated for
    update    arguments, value and auxiliary results, gradients -> results of the step

Source: docs/decisions/0020.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from jax import Array
from jax.lax import stop_gradient

from meshwise.errors import TraceError
from meshwise.jax_compat.jaxprs import Aval, ClosedJaxpr, FlatJaxpr, Var
from meshwise.jax_compat.source_lines import source_line
from meshwise.trace.gradients import only_loss
from meshwise.trace.layers.equations import (
    dependent,
    environment,
    inlined,
    needed,
    read,
    run,
    run_inlined,
    traced,
    variables,
)


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
        names: The names of the arguments.
    """

    forward: ClosedJaxpr
    num_aux: int
    num_roots: int
    update: ClosedJaxpr
    batch_dims: Mapping[int, int]
    aliases: tuple[tuple[int, int], ...]
    names: tuple[str, ...]

    @property
    def in_avals(self) -> tuple[Aval, ...]:
        """The shapes and dtypes of the arguments."""
        return tuple(self.forward.in_avals)

    @property
    def roots(self) -> tuple[Var, ...]:
        """Variables of `forward` that the loss is differentiated for."""
        return tuple(self.forward.jaxpr.outvars[1 + self.num_aux :][: self.num_roots])


def split_step(
    closed: ClosedJaxpr,
    batch_dims: Mapping[int, int],
    aliases: tuple[tuple[int, int], ...],
    names: tuple[str, ...],
) -> SplitStep:
    """Take a traced step apart.

    Args:
        closed: Its jaxpr, with the loss as one equation.
        batch_dims: Batch dim of each argument that is batch data, by position.
        aliases: Pairs (argument, result) of the state.
        names: The names of the arguments.

    Returns:
        Its forward pass and its update.

    Raises:
        TraceError: there is no loss, or more than one.
    """
    halves = _Halves(inlined(closed), batch_dims)
    loss = halves.loss
    return SplitStep(
        forward=halves.first,
        num_aux=halves.num_values - 1,
        num_roots=len(loss.params["wrt"]),
        update=traced(halves.update, [*halves.flat.in_avals, *(v.aval for v in loss.outvars)]),
        batch_dims=dict(batch_dims),
        aliases=aliases,
        names=names,
    )


class _Halves:
    """What runs before and after the gradients, as functions of flat operands.

    Attributes:
        flat: The closed jaxpr of the step, calls taken apart.
        loss: The equation of the loss.
        num_values: How many values the loss returns, the auxiliary ones counted.
        first: The closed jaxpr of the forward pass.
    """

    def __init__(self, flat: ClosedJaxpr, batch_dims: Mapping[int, int]) -> None:
        _refuse_callbacks(flat.jaxpr)
        self.flat, self.loss = flat, only_loss(flat)
        others = [e for e in flat.jaxpr.eqns if e is not self.loss]
        # What both sides need of the arguments, each makes for itself.
        self._before = needed(others, variables(self.loss.invars))
        self._after = needed(others, variables(flat.jaxpr.outvars))
        self.num_values = len(self.loss.params["loss"].out_avals)
        self.first = traced(self.forward, flat.in_avals)
        self._apart = _made_apart(self.first, self.num_values, batch_dims)

    def forward(self, *operands: Array) -> list[Array]:
        """Return the values of the loss, and what it is differentiated for."""
        known = environment(self.flat, operands)
        run(self._before, known)
        taken = self._taken(known)
        outs = run_inlined(self.loss.params["loss"], taken)
        return [*outs, *(taken[i] for i in self.loss.params["wrt"])]

    def _taken(self, known: Mapping[Var, Array]) -> list[Array]:
        """Return the operands of the loss: what it is differentiated for moves alone.

        All else is constant, though parameters may be in it or be it: targets, the probabilities
        before the step.
        """
        invars, wrt = self.loss.invars, self.loss.params["wrt"]
        roots = variables(invars[i] for i in wrt)
        moved = dependent(self._before, roots)
        follow = {
            v for e in self._before if not moved.isdisjoint(variables(e.invars)) for v in e.outvars
        }
        twice = {v for v, count in Counter(roots).items() if count > 1}

        def is_constant(position: int) -> bool:
            others = follow | twice if position in wrt else moved
            return not others.isdisjoint(variables([invars[position]]))

        values = [read(known, v) for v in invars]
        return [stop_gradient(v) if is_constant(i) else v for i, v in enumerate(values)]

    def update(self, *operands: Array) -> list[Array]:
        """Return the results of the step; takes its arguments, values of the loss, gradients."""
        count, outvars = len(self.flat.in_avals), self.loss.outvars
        known = environment(self.flat, operands[:count])
        known.update(zip(outvars, operands[count:], strict=True))
        made = _run_apart(self.first, self._apart, operands[:count])
        known.update((outvars[k], value) for k, value in made)
        run(self._after, known)
        return [read(known, v) for v in self.flat.jaxpr.outvars]


def _refuse_callbacks(jaxpr: FlatJaxpr) -> None:
    """Check that nothing calls the host for an effect: no part of a stage would do that once.

    Raises:
        TraceError: something does.
    """
    for eqn in jaxpr.eqns:
        if eqn.effects:
            raise TraceError(
                f"{eqn.primitive.name} at {source_line(eqn.source_info)} calls a function of the "
                "host for its effect, and stages run no such calls; take it out of the step and "
                "return what it shows, or plan without stages (method=mw.IntraOp())"
            )


def _made_apart(forward: ClosedJaxpr, num_values: int, batch_dims: Mapping[int, int]) -> list[int]:
    """Auxiliary results (numbers among the values) that no layer makes.

    A layer makes what depends on both parameters and batch; constants, counters, masks it does not.
    """
    jaxpr = forward.jaxpr
    varied = dependent(jaxpr.eqns, jaxpr.outvars[num_values:])
    batch = dependent(jaxpr.eqns, [jaxpr.invars[i] for i in batch_dims])
    made = {v for e in jaxpr.eqns for v in e.outvars if v in varied and v in batch}
    return [k for k in range(1, num_values) if made.isdisjoint(variables([jaxpr.outvars[k]]))]


def _run_apart(
    forward: ClosedJaxpr, apart: Sequence[int], arguments: Sequence[Array]
) -> Iterator[tuple[int, Array]]:
    """Values of the loss that no layer makes, by number."""
    jaxpr, known = forward.jaxpr, environment(forward, arguments)
    run(needed(jaxpr.eqns, variables(jaxpr.outvars[k] for k in apart)), known)
    for k in apart:
        yield k, read(known, jaxpr.outvars[k])
