"""A pipeline that fits by its target's compiler: planned, compiled, planned again if need be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from meshwise.errors import InfeasibleError, PlanError
from meshwise.planner.planned_pipeline import PlannedPipeline
from meshwise.targets.verification import Verification, VerifiedStage
from meshwise.units import bytes_text

# Plans that are compiled, at most, and the part by which the memory falls each time, at least.
_MOST_PLANS, _LEAST_STEP = 6, 0.01


def plan_verified(
    plan: Callable[[float], PlannedPipeline],
    verify: Callable[[PlannedPipeline], Verification],
    report: Callable[[str], object] = lambda _: None,
) -> tuple[PlannedPipeline, Verification]:
    """Plan until the compiler says that the plan fits.

    If the compiler needs more for a stage than a device has, all stages are planned for as much
    less of their devices' memory as the prediction for the fullest one was too low.

    Args:
        plan: Plans for a share of the memory of every device; the plan names the whole memory.
        verify: Says what the compiler makes of a plan.
        report: Is told why it is planned again.

    Returns:
        The plan, and what the compiler says of it.

    Raises:
        InfeasibleError: no plan was found that fits by the compiler.
        MeshwiseError: there is no first plan, or it cannot be compiled.
    """
    share = 1.0
    worst: VerifiedStage | None = None
    for _ in range(_MOST_PLANS):
        if worst is not None:
            report(f"by the compiler {_need(worst)}: planned again for {share:.1%} of the memory")
        try:
            found = plan(share)
        except (InfeasibleError, PlanError) as error:
            if worst is None:
                raise
            raise InfeasibleError(
                f"no plan was found that fits by the compiler: {_need(worst)}. Planned for "
                f"{share:.1%} of the memory, of which these numbers are: {error}"
            ) from error
        verified = verify(found)
        if verified.fits:
            made = f"{verified.compiler} for {verified.target}: {_need(_fullest(verified))}"
            return replace(found, plan=replace(found.plan, verified=made)), verified
        worst = _fullest(verified)
        enough = worst.predicted_bytes * worst.limit_bytes / worst.compiled_bytes
        has = found.plan.stages[worst.stage].memory_bytes
        share = min(enough / has, share * (1 - _LEAST_STEP))
    assert worst is not None
    raise InfeasibleError(
        f"none of {_MOST_PLANS} plans fits by the compiler: in the last one {_need(worst)}. Plan "
        "with less memory (--memory)"
    )


def _fullest(verified: Verification) -> VerifiedStage:
    return max(verified.stages, key=lambda stage: stage.compiled_bytes / stage.limit_bytes)


def _need(stage: VerifiedStage) -> str:
    compiled, limit = bytes_text(stage.compiled_bytes), bytes_text(stage.limit_bytes)
    return f"stage {stage.stage} needs {compiled} of {limit} a device"
