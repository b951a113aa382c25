"""Table: the best plan of each schedule."""

from __future__ import annotations

from collections.abc import Sequence

from meshwise.report.html.markup import escaped, html_table
from meshwise.report.schedules import HEADER, NOTE, SIDES, TITLE, schedule_row
from meshwise.simulate.simulated_plan import SimulatedPlan


def schedules_section(best: Sequence[SimulatedPlan]) -> str:
    """Return the section of the page; empty for less than two schedules.

    Args:
        best: The best of each schedule.
    """
    if len(best) < 2:
        return ""
    rows = [tuple(map(escaped, schedule_row(one))) for one in best]
    return f"<h2>{TITLE}</h2><p>{NOTE}</p>" + html_table(HEADER, rows, SIDES)
