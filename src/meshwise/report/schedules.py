"""The best pipeline of each schedule, as a table."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from meshwise.plan.text.columns import WIDTH, table
from meshwise.simulate.simulated_plan import SimulatedPlan
from meshwise.units import seconds_text

TITLE = "Best plan by schedule"
NOTE = (
    "Of the plans that were simulated. The search stops with a schedule when it cannot become the "
    "fastest. So a slower schedule may have a better plan than its row, or no row; and a search "
    "for one schedule alone may find another plan."
)
HEADER = ("schedule", "stages", "micro-batches", "step", "by the formula")
SIDES = "lrrrr"


def schedules_text(best: Sequence[SimulatedPlan]) -> str:
    """Return the table as text, with an empty line before it; empty for less than two schedules.

    Args:
        best: The best of each schedule.
    """
    if len(best) < 2:
        return ""
    rows = [schedule_row(one) for one in best]
    lines = ["", TITLE, *table(HEADER, rows, SIDES), *textwrap.wrap(NOTE, WIDTH)]
    return "\n".join(lines) + "\n"


def schedule_row(one: SimulatedPlan) -> tuple[str, ...]:
    """Return a row of the table.

    Args:
        one: The best of a schedule.
    """
    return (
        one.schedule,
        str(one.num_stages),
        str(one.num_microbatches),
        seconds_text(one.step_time_s),
        seconds_text(one.formula_s),
    )
