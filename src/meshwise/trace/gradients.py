"""How a step differentiates: with our `value_and_grad`, which can be cut into stages, or JAX's.

A gradient that JAX has taken cannot be taken apart afterwards: rules of custom derivatives are
applied, `stop_gradient` is gone, and residuals of loops are results of their forward passes, so
what is left of the loss need not have the gradient that stands in the step.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator
from pathlib import PurePath

from meshwise.errors import PlanError, TraceError
from meshwise.jax_compat.jaxprs import ClosedJaxpr, Eqn, FlatJaxpr, bodies
from meshwise.jax_compat.source_lines import gradient_call, source_line
from meshwise.trace.loss import call_line

LOSS = "loss_and_grad"
_LOOPS = frozenset({"scan", "while", "cond"})
_GRADIENT = r"(?<![\w.])(?:jax\.)?((?:nnx\.|eqx\.|equinox\.)?(?:filter_)?(?:value_and_grad|grad))"
_CALLED = re.compile(rf"{_GRADIENT}(?=\()")
_IN_DECORATOR = re.compile(rf"{_GRADIENT}(?=[(,)]|$)")


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
    if any(eqn.primitive.name == LOSS for eqn, _ in _equations(closed.jaxpr)):
        raise PlanError(
            f"{asked}: of the methods only Auto runs in stages; use mw.Auto(stages=...), or one "
            "stage"
        )
    raise TraceError(f"{asked} asks for pipeline stages, but {_without_loss(closed)}")


def only_loss(closed: ClosedJaxpr) -> Eqn:
    """Return the equation of the loss at which a step is cut into stages.

    Args:
        closed: The step, its calls inlined.

    Raises:
        TraceError: there is none, or more than one; the message shows the line to change.
    """
    losses = [eqn for eqn in closed.jaxpr.eqns if eqn.primitive.name == LOSS]
    if len(losses) == 1:
        return losses[0]
    if not losses:
        _refuse_inner_losses(closed.jaxpr)
        raise TraceError(f"a step is cut into stages at its loss, but {_without_loss(closed)}")
    places = "; ".join(call_line(eqn) for eqn in losses)
    raise TraceError(
        "a step that is cut into stages has one loss, differentiated with mw.value_and_grad; this "
        f"one has {len(losses)} ({places}): make one loss of their sum, as mw.value_and_grad("
        "lambda params: first(params) + second(params)), or, where one gradient needs the other, "
        "as in SAM, use one stage"
    )


def _refuse_inner_losses(jaxpr: FlatJaxpr) -> None:
    """Say what a loss in a loop or a branch means for stages.

    Raises:
        TraceError: there is one.
    """
    for eqn in jaxpr.eqns:
        losses = [e for body in bodies(eqn.params) for e in body.eqns if e.primitive.name == LOSS]
        if not losses:
            for body in bodies(eqn.params):
                _refuse_inner_losses(body)
            continue
        name, count = eqn.primitive.name, eqn.params.get("length")
        remedy = "put the choice into the loss"
        if name != "cond":
            remedy = (
                "to sum gradients over parts of the batch, take the loop away and say "
                f"num_microbatches={count or '...'}: the pipeline cuts the batch itself"
            )
        raise TraceError(
            "a step that is cut into stages differentiates its loss once, for the whole batch; "
            f"this one does at {call_line(losses[0])} inside the {name} at "
            f"{source_line(eqn.source_info)}; {remedy}, or use one stage"
        )


def _without_loss(closed: ClosedJaxpr) -> str:
    """Say why a step has no loss at which it could be cut, and what to write."""
    calls = (
        (gradient_call(eqn.source_info, [e.source_info for e in around]), around)
        for eqn, around in _equations(closed.jaxpr)
    )
    found, around = next((call for call in calls if call[0]), (None, ()))
    if found is None:
        return (
            "the step has no gradient that could be cut; differentiate the loss with "
            "mw.value_and_grad, or use one stage"
        )
    path, called, function, package = found
    line = called if package else _line_of_gradient(path, called)
    inside = f" ({function})" if line == called else ""
    code = linecache.getline(path, line).strip()
    if package == "meshwise":
        return (
            f"its gradient at {PurePath(path).name}:{line}{inside} is inside of a transformation, "
            "as jax.vmap or jax.jvp; only a gradient of the step itself can be cut: use one stage"
        )
    if package:
        return (
            f"{package} takes the gradient for the step at {PurePath(path).name}:{line}{inside}: "
            f"`{code}`; only a gradient that the step takes itself, with mw.value_and_grad, can be "
            "cut: use one stage"
        )
    loop = next((eqn for eqn in around if eqn.primitive.name in _LOOPS), None)
    if loop is not None:
        return (
            f"the step differentiates with JAX's own function at {PurePath(path).name}:{line}"
            f"{inside}, inside the {loop.primitive.name} at {source_line(loop.source_info)}; it is "
            "cut at one gradient for the whole batch, by mw.value_and_grad outside of loops and "
            "branches: rewrite it so, or use one stage"
        )
    changed = _pattern(code).sub(_marked, code)
    to_write = f"write `{changed}`"
    if changed == code:
        to_write = (
            "take it from meshwise, for modules as mw.eqx.filter_value_and_grad or "
            "mw.nnx.value_and_grad"
        )
    return (
        f"the step differentiates with JAX's own function at {PurePath(path).name}:{line}{inside}: "
        f"`{code}`; only mw.value_and_grad and mw.grad mark the loss so that it can be cut: "
        f"{to_write}, or use one stage"
    )


def _pattern(code: str) -> re.Pattern[str]:
    """Return what finds a gradient in a line, which a decorator need not call."""
    return _IN_DECORATOR if code.startswith("@") else _CALLED


def _marked(found: re.Match[str]) -> str:
    name = found[1].replace("equinox.", "eqx.")
    return f"mw.eqx.{name}" if name.startswith("filter_") else f"mw.{name}"


def _line_of_gradient(path: str, line: int) -> int:
    """Return the line that makes what a line calls, or the line.

    That is one as `grad_fn = jax.grad(loss)`, or the decorator of a function.
    """
    code = linecache.getline(path, line)
    if _CALLED.search(code):
        return line
    lines = [text.strip() for text in linecache.getlines(path)]
    for name in re.findall(r"\b(\w+)\(", code):
        made, defined = re.compile(rf"{name}\s*=.*"), f"def {name}("
        for number in range(min(line, len(lines)), 0, -1):
            if made.match(lines[number - 1]) and _CALLED.search(lines[number - 1]):
                return number
        for number, text in enumerate(lines):
            if not text.startswith(defined):
                continue
            while number and lines[number - 1].startswith("@"):
                if _IN_DECORATOR.search(lines[number - 1]):
                    return number
                number -= 1
    return line


def _equations(
    jaxpr: FlatJaxpr, around: tuple[Eqn, ...] = ()
) -> Iterator[tuple[Eqn, tuple[Eqn, ...]]]:
    """Equations, with those whose bodies hold them, inner ones first."""
    for eqn in jaxpr.eqns:
        yield eqn, around
        for inner in bodies(eqn.params):
            yield from _equations(inner, (eqn, *around))
