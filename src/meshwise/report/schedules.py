"""The best pipeline of each schedule, as a table."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from meshwise.plan.record import ONE_PROGRAM, PlanRecord
from meshwise.plan.text.columns import WIDTH, table
from meshwise.simulate.simulated_plan import SimulatedPlan
from meshwise.units import seconds_text

TITLE = "Best plan by schedule"
NOTE = (
    "Of the plans that were simulated. The search stops with a schedule when it cannot become the "
    "fastest. So a slower schedule may have a better plan than its row, or no row; and a search "
    "for one schedule alone may find another plan."
)
# For texts and pages of a plan alone, as one that was read from a file.
ELSEWHERE = (
    "A plan file does not have the other plans of the search. `meshwise plan` prints the best plan "
    "of each schedule that it simulated, and its --html page has them."
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


def elsewhere_text(plan: PlanRecord) -> str:
    """Return where the table is to be had, with an empty line before it; empty without a search.

    Args:
        plan: A plan alone; of one mesh, of a single schedule and of fixed stages there is no table.
    """
    return "\n".join(["", TITLE, *textwrap.wrap(ELSEWHERE, WIDTH), ""]) if has_search(plan) else ""


def has_search(plan: PlanRecord) -> bool:
    """Return whether a search chose the stages, so that there may have been several schedules.

    Args:
        plan: The plan.
    """
    return plan.schedule != ONE_PROGRAM and bool(plan.tried)


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
