"""A pipeline that fits by its target's compiler: planned, compiled, planned again if need be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from meshwise.errors import InfeasibleError, PlanError
from meshwise.planner.schedule_choice import PlannedPipeline
from meshwise.targets.verification import Verification, VerifiedStage
from meshwise.units import bytes_text

# Plans that are compiled, at most, and the part by which the memory falls each time, at least.
_MOST_PLANS, _LEAST_STEP = 6, 0.01
# Where the compiler leaves so much more room, and the plan used so much of what it was given, a
# plan for more is made; it is compiled if its step is so much shorter.
_MUCH_ROOM, _FULL, _GAIN = 1.05, 0.9, 0.01


def plan_verified(
    plan: Callable[[float], PlannedPipeline],
    verify: Callable[[PlannedPipeline], Verification],
    report: Callable[[str], object] = lambda _: None,
) -> tuple[PlannedPipeline, Verification]:
    """Plan until the compiler says that the plan fits, and once for more where it leaves much room.

    If the compiler needs more for a stage than a device has, all stages are planned for as much
    less of their devices' memory as the prediction for the fullest one was too low.  If it needs
    much less, they are planned for as much more; that plan is taken if it is faster and fits.

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
    share, found, verified = _fitting(plan, verify, report)
    fullest = _fullest(verified)
    more = share * fullest.limit_bytes / fullest.compiled_bytes
    used = max(stage.predicted_bytes / stage.limit_bytes for stage in verified.stages)
    if more < _MUCH_ROOM * share or used < _FULL * share:
        return _told(found, verified), verified
    report(f"by the compiler {_need(fullest)}: planned for {more:.1%} of the memory too")
    larger = plan(more)
    if larger.plan.step_time_s < (1 - _GAIN) * found.plan.step_time_s:
        other = verify(larger)
        if other.fits:
            found, verified = larger, other
    return _told(found, verified), verified


def _fitting(
    plan: Callable[[float], PlannedPipeline],
    verify: Callable[[PlannedPipeline], Verification],
    report: Callable[[str], object],
) -> tuple[float, PlannedPipeline, Verification]:
    """Return a share of the memory for which a plan fits, the plan, and what its compiler says."""
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
            return share, found, verified
        worst = _fullest(verified)
        enough = worst.predicted_bytes * worst.limit_bytes / worst.compiled_bytes
        has = found.plan.stages[worst.stage].memory_bytes
        share = min(enough / has, share * (1 - _LEAST_STEP))
    assert worst is not None
    raise InfeasibleError(
        f"none of {_MOST_PLANS} plans fits by the compiler: in the last one {_need(worst)}. Plan "
        "with less memory (--memory)"
    )


def _told(found: PlannedPipeline, verified: Verification) -> PlannedPipeline:
    """Return a plan that names its compiler."""
    made = f"{verified.compiler} for {verified.target}: {_need(_fullest(verified))}"
    return replace(found, plan=replace(found.plan, verified=made))


def _fullest(verified: Verification) -> VerifiedStage:
    return max(verified.stages, key=lambda stage: stage.compiled_bytes / stage.limit_bytes)


def _need(stage: VerifiedStage) -> str:
    compiled, limit = bytes_text(stage.compiled_bytes), bytes_text(stage.limit_bytes)
    return f"stage {stage.stage} needs {compiled} of {limit} a device"
