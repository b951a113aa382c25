"""Table: the best plan of each schedule."""

from __future__ import annotations

from collections.abc import Sequence

from meshwise.plan.record import PlanRecord
from meshwise.report.html.markup import escaped, html_table
from meshwise.report.schedules import (
    ELSEWHERE,
    HEADER,
    NOTE,
    SIDES,
    TITLE,
    has_search,
    schedule_row,
)
from meshwise.simulate.simulated_plan import SimulatedPlan


def schedules_section(plan: PlanRecord, best: Sequence[SimulatedPlan] | None) -> str:
    """Return the section of the page; empty for less than two schedules.

    Args:
        plan: The plan of the page.
        best: The best of each schedule; None where that is not known, of a plan alone.
    """
    if best is None:
        told = has_search(plan)
        return f"<h2>{TITLE}</h2><p>{escaped(ELSEWHERE)}</p>" if told else ""
    if len(best) < 2:
        return ""
    rows = [tuple(map(escaped, schedule_row(one))) for one in best]
    return f"<h2>{TITLE}</h2><p>{NOTE}</p>" + html_table(HEADER, rows, SIDES)
