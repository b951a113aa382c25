"""What a replayed plan is refused with where it is for another step or other arguments."""

from __future__ import annotations

from meshwise.errors import PlanError
from meshwise.graph.graph import Graph
from meshwise.plan.plan import Plan
from meshwise.plan.spelling import spelled

_NAMED = 3
REMEDY = (
    "a plan holds for one step and one shape of its batch: pass what it was made for, or plan "
    "again; in Python, mw.parallelize without mw.Replay plans for each shape"
)


def other_step(plan: Plan, graph: Graph) -> PlanError:
    """Return the error that names the arguments that differ, if any does.

    Args:
        plan: A plan of one mesh.
        graph: The graph of the step that it is not for.
    """
    there = {item.name: f"{item.dtype}{list(item.shape)}" for item in plan.stages[0].arguments}
    inputs = [graph.tensors[ident] for ident in graph.inputs]
    here = {tensor.name: f"{tensor.dtype}{list(tensor.shape)}" for tensor in inputs}
    spelling = dict(plan.spelling)
    other = [
        f"{''.join(spelled(name, spelling))} is {here.get(name, 'not there')} here and "
        f"{there.get(name, 'not there')} in the plan"
        for name in {**here, **there}
        if here.get(name) != there.get(name)
    ]
    same = "its arguments are the same, and its operations are others"
    told = "; ".join(other[:_NAMED]) or same
    more = f"; and {len(other) - _NAMED} more" if len(other) > _NAMED else ""
    return PlanError(f"the plan is for another step or other shapes: {told}{more}; {REMEDY}")
