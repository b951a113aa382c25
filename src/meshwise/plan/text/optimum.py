"""How good a plan is: what is proved of it, in words."""

from __future__ import annotations

from meshwise.plan.record import PlanRecord

# Shares below the first are rounding, those below the second would be printed as 0.00%.
_NOTHING, _LEAST = 1e-9, 1e-4


def optimum_text(plan: PlanRecord, space: str = "its space") -> str:
    """Return what is proved of a plan, as `no plan of its space is predicted to be faster`.

    Args:
        plan: The plan.
        space: What the plans are called among which it is the best.
    """
    if plan.status == "greedy":
        return "nothing was searched, the method fixes the plan; no bound known"
    stopped = "stopped by the time limit; " if plan.status == "time limit" else ""
    if plan.gap is None:
        return f"{stopped}no bound known"
    by = f"more than {max(plan.gap, _LEAST):.2%} " if plan.gap > _NOTHING else ""
    if plan.objective != "time":
        return f"{stopped}no plan of {space} has a cost that is {by}lower"
    return f"{stopped}no plan of {space} is predicted to be {by}faster"
