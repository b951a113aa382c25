"""What fills the memory of a device at its peak."""

from __future__ import annotations

from meshwise.plan.peak_part import PeakPart
from meshwise.plan.plan import Plan
from meshwise.plan.record import ONE_PROGRAM
from meshwise.plan.spelling import spelled
from meshwise.plan.text.memory_parts import ROLES, filled_memory
from meshwise.report.html.markup import escaped, html_table
from meshwise.units import bytes_text

_OF_ONE_PROGRAM = (
    "Arguments are the state and the batch, and new state that takes the place of the old. Values "
    "are kept from where they are made to their last use: activations for the backward pass, "
    "gradients. Copies are values in another layout, as collectives make them."
)
_OF_STAGES = (
    "Arguments are the state. Gradients are summed over the micro-batches, in the type of the "
    "gradient; the sums stay until the update, as do weights that are gathered or cast to another "
    "type once for all micro-batches. The other words are those of the table of stages above."
)


def peak_section(plan: Plan) -> str:
    """Return the section of the page; empty for plans that do not say it."""
    filled = filled_memory(plan)
    if filled is None:
        return ""
    rows = [_row(plan, part, filled.peak_bytes) for part in filled.parts]
    words = _OF_ONE_PROGRAM if plan.schedule == ONE_PROGRAM else _OF_STAGES
    return (
        f"<h2>What fills the memory{escaped(filled.of)}</h2><p>One device when it holds most, "
        f"predicted. {words}</p>"
        + html_table(("what", "of", "number", "bytes", "share"), rows, "llrrr")
    )


def _row(plan: Plan, part: PeakPart, peak_bytes: int) -> tuple[str, ...]:
    name = part.where
    if part.role == "input":
        name = "".join(spelled(part.where, dict(plan.spelling)))
    return (
        ROLES.get(part.role, escaped(part.role)),
        escaped(name),
        str(part.count) if part.count else "",
        bytes_text(part.num_bytes),
        f"{part.num_bytes / peak_bytes:.1%}",
    )
