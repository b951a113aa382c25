"""Other methods beside the plan: what a step takes, where its seconds go, what a device holds."""

from __future__ import annotations

from collections.abc import Sequence

from meshwise.baselines.rival_method import RivalMethod, StepParts
from meshwise.plan.plan import Plan
from meshwise.plan.record import ONE_PROGRAM
from meshwise.report.html.markup import escaped, html_table
from meshwise.report.html.seconds import busiest, mesh_seconds
from meshwise.simulate.plan import Simulation
from meshwise.units import bytes_text, counted, seconds_text

# Names of `StepParts`, as columns and as what a rival loses by.
_PARTS = {
    "computes": "computation",
    "collectives": "collectives",
    "transfers": "transfers between stages",
    "idle": "the bubble",
}


def rivals_section(
    plan: Plan, rivals: Sequence[RivalMethod], simulation: Simulation | None = None
) -> str:
    """Return the section of the page; nothing where none was planned.

    Args:
        plan: The plan.
        rivals: The fastest of each other method.
        simulation: A simulated step of the plan; None for a step that is one program.
    """
    if not rivals:
        return ""
    mesh = busiest(mesh_seconds(plan, simulation))
    mine = StepParts(
        computes_s=mesh.computes_s,
        collectives_s=mesh.collectives_s,
        transfers_s=mesh.transfers_s,
        idle_s=mesh.idle_s,
    )
    step = seconds_text(plan.step_time_s)
    is_one = plan.schedule == ONE_PROGRAM
    own = "" if is_one else f"<small>schedule {escaped(plan.schedule_choice)}</small>"
    name = f"<strong>this plan</strong>{own}"
    orders = "" if is_one else " A rival with stages has its own schedule, named beside it."
    rows = [(name, step, "", *_cells(mine), bytes_text(plan.peak_bytes))]
    rows += [_row(plan, mine, rival) for rival in rivals]
    faster = "".join(_faster(plan, rival) for rival in rivals)
    if faster:
        faster += (
            " A rival is faster where it does what the plan was not allowed to (another number of "
            "micro-batches, fewer stages, another schedule, no pins), or what the search does not "
            "try, for example meshes of three axes: leave out what was asked for, and plan again."
        )
    return (
        "<h2>Beside other methods</h2><p>The fastest of each that fits, with the same costs, "
        "cluster, memory and rematerialisation to choose from. A rival has one of the numbers of "
        f"micro-batches that the plan could have, or one micro-batch; this plan has "
        f"{plan.num_microbatches}. ZeRO-3 gathers parameters for each pass; beside a plan with "
        "stages, even one, it may also gather them once a step and keep them. Megatron-LM's grid "
        "is data and tensor parallel; beside a plan with stages it is pipeline, context and expert "
        f"parallel too.{orders} All numbers are predictions. From <em>computes</em> to "
        f"<em>idle</em> they are the seconds of the devices that work longest.{faster}</p>"
        + html_table(("", "step", "over the plan", *_PARTS, "a device"), rows, "wrrrrrrr")
    )


def _faster(plan: Plan, rival: RivalMethod) -> str:
    """Return a sentence on a rival that is faster than the plan; nothing if it is not."""
    if rival.step_time_s is None or rival.step_time_s >= plan.step_time_s:
        return ""
    less = 1 - rival.step_time_s / plan.step_time_s
    counts = ""
    if rival.num_microbatches not in (None, plan.num_microbatches):
        has = counted(rival.num_microbatches, "micro-batch")
        counts = f", with {has} where this plan has {plan.num_microbatches}"
    return f" <strong>{escaped(rival.name)} takes {less:.1%} less time{counts}.</strong>"


def _seconds(parts: StepParts) -> tuple[float, ...]:
    return parts.computes_s, parts.collectives_s, parts.transfers_s, parts.idle_s


def _cells(parts: StepParts | None) -> tuple[str, ...]:
    if parts is None:
        return ("",) * len(_PARTS)
    return tuple(seconds_text(s) if s else "-" for s in _seconds(parts))


def _row(plan: Plan, mine: StepParts, rival: RivalMethod) -> tuple[str, ...]:
    name = escaped(rival.name) + (f"<small>{escaped(rival.how)}</small>" if rival.how else "")
    holds = "-" if rival.peak_bytes is None else bytes_text(rival.peak_bytes)
    parts = _cells(rival.parts)
    if rival.step_time_s is not None:
        more = rival.step_time_s / plan.step_time_s - 1 if plan.step_time_s else 0.0
        over = f"{more:+.1%}{_reason(mine, rival.parts) if more > 0 else ''}"
        return (name, seconds_text(rival.step_time_s), over, *parts, holds)
    if rival.peak_bytes is None:
        return (name, "no plan", "", *parts, holds)
    fits = '<span class="over">does not fit</span>'
    return (name, fits, "", *parts, f"at least {holds}")


def _reason(mine: StepParts, other: StepParts | None) -> str:
    """Return the part in which a slower rival loses most."""
    if other is None:
        return ""
    names = _PARTS.values()
    longer = zip(names, _seconds(mine), _seconds(other), strict=True)
    name, _ = max(((n, b - a) for n, a, b in longer), key=lambda found: found[1])
    return f"<small>most in {name}</small>"
