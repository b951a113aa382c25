"""What fills the memory of a device at the peak of one program."""

from __future__ import annotations

from meshwise.plan.peak_part import PeakPart
from meshwise.plan.plan import Plan
from meshwise.plan.spelling import spelled
from meshwise.report.html.markup import escaped, html_table
from meshwise.units import bytes_text

_ROLES = {"input": "arguments", "value": "values", "copy": "copies of values", "rest": "all else"}


def peak_section(plan: Plan) -> str:
    """Return the section of the page; empty for plans that do not say it."""
    if not plan.peak_parts:
        return ""
    rows = [_row(plan, part) for part in plan.peak_parts]
    return (
        "<h2>What fills the memory</h2><p>One device when it holds most, predicted. Arguments are "
        "the state and the batch, and new state that takes the place of the old. Values are kept "
        "from where they are made to their last use: activations for the backward pass, "
        "gradients. Copies are values in another layout, as collectives make them.</p>"
        + html_table(("what", "of", "number", "bytes", "share"), rows, "llrrr")
    )


def _row(plan: Plan, part: PeakPart) -> tuple[str, ...]:
    name = part.where
    if part.role == "input":
        name = "".join(spelled(part.where, dict(plan.spelling)))
    return (
        _ROLES.get(part.role, escaped(part.role)),
        escaped(name),
        str(part.count) if part.count else "",
        bytes_text(part.num_bytes),
        f"{part.num_bytes / plan.peak_bytes:.1%}",
    )
