"""Other methods beside the plan: what a step takes and a device holds."""

from __future__ import annotations

import math
from collections.abc import Sequence

from meshwise.baselines.rival_method import RivalMethod
from meshwise.plan.plan import Plan
from meshwise.report.html.markup import escaped, html_table
from meshwise.units import bytes_text, seconds_text


def rivals_section(plan: Plan, rivals: Sequence[RivalMethod]) -> str:
    """Return the section of the page; nothing where none was planned."""
    if not rivals:
        return ""
    step = seconds_text(plan.simulated_s)
    rows = [("<strong>this plan</strong>", step, "", bytes_text(plan.peak_bytes))]
    rows += [_row(plan, rival) for rival in rivals]
    faster = ""
    if any((rival.step_time_s or math.inf) < plan.simulated_s for rival in rivals):
        faster = (
            " One that is faster does what the plan was not allowed to, for example fewer stages, "
            "or what the search does not try, for example meshes of three axes."
        )
    return (
        "<h2>Beside other methods</h2><p>The fastest of each that fits, with the same costs, "
        "cluster, memory, numbers of micro-batches and rematerialisation to choose from. ZeRO-3 "
        "gathers parameters for each pass; beside a plan with stages, even one, it may also gather "
        f"them once a step and keep them. All numbers are predictions.{faster}</p>"
        + html_table(("", "step", "over the plan", "a device"), rows, "wrrr")
    )


def _row(plan: Plan, rival: RivalMethod) -> tuple[str, ...]:
    name = escaped(rival.name) + (f"<small>{escaped(rival.how)}</small>" if rival.how else "")
    holds = "-" if rival.peak_bytes is None else bytes_text(rival.peak_bytes)
    if rival.step_time_s is not None:
        more = rival.step_time_s / plan.simulated_s - 1 if plan.simulated_s else 0.0
        return (name, seconds_text(rival.step_time_s), f"{more:+.1%}", holds)
    if rival.peak_bytes is None:
        return (name, "no plan", "", holds)
    fits = '<span class="over">does not fit</span>'
    return (name, fits, "", f"at least {holds}")
