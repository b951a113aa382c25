"""A plan is planned again until the compiler says that it fits, or the refusal says why not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from doubles.golden_plans import gpt_pipeline
from meshwise.api.verified_plan import plan_verified
from meshwise.errors import InfeasibleError
from meshwise.plan.plan import Plan
from meshwise.plan.stage import Stage
from meshwise.planner.schedule_choice import PlannedPipeline
from meshwise.targets.verification import Verification, VerifiedStage

pytestmark = pytest.mark.usefixtures("compiled_kernels")


class Planner:
    """Plans a pipeline within a memory, and knows for which ones it was asked.

    Its plans differ in temporary values only, of which it can spare half.
    """

    def __init__(self, found: PlannedPipeline) -> None:
        self.found = found
        self.memory_bytes = found.plan.peak_bytes
        self.asked: list[int | None] = []

    def plan(self, num_bytes: int | None) -> PlannedPipeline:
        self.asked.append(num_bytes)
        limit = num_bytes or self.memory_bytes
        stages: list[Stage] = []
        for stage in self.found.plan.stages:
            spared = max(stage.peak_bytes - limit, 0)
            if spared > stage.temporary_bytes // 2:
                raise InfeasibleError(f"nothing fits into {limit} bytes")
            left = stage.temporary_bytes - spared
            stages.append(replace(stage, temporary_bytes=left, memory_bytes=limit))
        return replace(self.found, plan=replace(self.found.plan, stages=tuple(stages)))


@pytest.fixture(scope="module")
def two_stages() -> PlannedPipeline:
    return gpt_pipeline(num_stages=2)


@pytest.fixture
def planner(two_stages: PlannedPipeline) -> Planner:
    return Planner(two_stages)


def verified_at(found: PlannedPipeline, factor: float) -> Verification:
    """A compiler that needs so many times what was predicted."""
    return Verification(
        target="h100",
        compiler="a compiler 1.0",
        memory_bytes=2**40,
        reserves={},
        usable_bytes=2**40,
        stages=tuple(
            VerifiedStage(
                stage=s,
                predicted_bytes=predicted,
                compiled_bytes=int(factor * predicted),
                limit_bytes=found.plan.stages[s].memory_bytes,
            )
            for s, predicted in enumerate(found.plan.mesh_peak_bytes)
        ),
        programs=(),
        collectives=(),
    )


def test_a_plan_that_fits_is_taken_and_says_by_what(planner: Planner) -> None:
    found, verified = plan_verified(planner.plan, lambda p: verified_at(p, 1.0))
    assert planner.asked == [None]
    assert verified.fits
    assert found.plan.verified.startswith("a compiler 1.0 for h100: ")
    assert f"verified      {found.plan.verified}" in found.plan.explain()
    assert Plan.from_json(found.plan.to_json()).verified == found.plan.verified


def test_a_plan_of_which_the_compiler_needs_more_is_made_for_less(planner: Planner) -> None:
    told: list[str] = []
    found, verified = plan_verified(planner.plan, lambda p: verified_at(p, 1.02), told.append)
    assert verified.fits
    assert verified.compiled_bytes <= planner.memory_bytes
    first, *later = planner.asked
    assert first is None
    assert later
    assert all(x is not None and x < planner.memory_bytes for x in later)
    assert len(told) == len(later)
    assert "planned again for" in told[0]
    # The plan has the memory that there is.
    assert {stage.memory_bytes for stage in found.plan.stages} == {planner.memory_bytes}


def test_where_nothing_fits_by_the_compiler_the_error_says_what_it_needs(planner: Planner) -> None:
    with pytest.raises(InfeasibleError, match="no plan was found that fits by the compiler"):
        plan_verified(planner.plan, lambda p: verified_at(p, 10.0))


def test_a_compiler_that_always_needs_more_ends_the_search(planner: Planner) -> None:

    def never(found: PlannedPipeline) -> Verification:
        stages = verified_at(found, 1.0).stages
        return replace(
            verified_at(found, 1.0),
            stages=tuple(replace(s, compiled_bytes=s.limit_bytes + 1) for s in stages),
        )

    with pytest.raises(InfeasibleError, match="none of 6 plans fits by the compiler"):
        plan_verified(planner.plan, never)
    assert len(planner.asked) == 6
