"""A pipeline that fits by its target's compiler: planned, compiled, planned again if need be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from meshwise.errors import InfeasibleError
from meshwise.planner.schedule_choice import PlannedPipeline
from meshwise.targets.verification import Verification, VerifiedStage
from meshwise.units import bytes_text

# Plans that are compiled, at most, and the part by which the limit falls each time, at least.
_MOST_PLANS, _LEAST_STEP = 6, 0.01


def plan_verified(
    plan: Callable[[int | None], PlannedPipeline],
    verify: Callable[[PlannedPipeline], Verification],
    report: Callable[[str], object] = lambda _: None,
) -> tuple[PlannedPipeline, Verification]:
    """Plan until the compiler says that the plan fits.

    A stage for which the compiler needs more than a device has is planned for as much less as the
    prediction was too low.

    Args:
        plan: Plans for so many bytes a device; None: what was asked for.
        verify: Says what the compiler makes of a plan.
        report: Is told of each new limit.

    Returns:
        The plan, with the memory that was asked for (planned again: the least of its devices), and
        what the compiler says of it.

    Raises:
        InfeasibleError: no plan was found that fits by the compiler.
    """
    limit, less = 0, None
    worst: VerifiedStage | None = None
    for _ in range(_MOST_PLANS):
        try:
            found = plan(less)
        except InfeasibleError as error:
            if worst is None:
                raise
            raise InfeasibleError(
                f"no plan was found that fits by the compiler: {_need(worst)}; planned for less: "
                f"{error}"
            ) from error
        if less is None:
            limit = min(stage.memory_bytes for stage in found.plan.stages)
        else:
            found = _with_memory(found, limit)
        verified = verify(found)
        if verified.fits:
            made = f"{verified.compiler} for {verified.target}: {_need(_fullest(verified))}"
            return replace(found, plan=replace(found.plan, verified=made)), verified
        worst = _fullest(verified)
        enough = worst.predicted_bytes * worst.limit_bytes // worst.compiled_bytes
        less = min(enough, int((less or limit) * (1 - _LEAST_STEP)))
        report(f"by the compiler {_need(worst)}: planned again for {bytes_text(less)}")
    assert worst is not None
    raise InfeasibleError(
        f"none of {_MOST_PLANS} plans fits by the compiler: in the last one {_need(worst)}. Plan "
        "with less memory (memory_bytes)"
    )


def _with_memory(found: PlannedPipeline, num_bytes: int) -> PlannedPipeline:
    """Return what was planned for less, with the memory that there is."""
    stages = tuple(replace(stage, memory_bytes=num_bytes) for stage in found.plan.stages)
    return replace(found, plan=replace(found.plan, stages=stages))


def _fullest(verified: Verification) -> VerifiedStage:
    return max(verified.stages, key=lambda stage: stage.compiled_bytes / stage.limit_bytes)


def _need(stage: VerifiedStage) -> str:
    compiled, limit = bytes_text(stage.compiled_bytes), bytes_text(stage.limit_bytes)
    return f"stage {stage.stage} needs {compiled} of {limit} a device"
