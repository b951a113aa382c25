"""A plan is planned again until the compiler says that it fits, or the refusal says why not."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from doubles.compiled_plans import verification
from doubles.perceptron import perceptron_pipeline
from meshwise.api.verified_plan import plan_verified
from meshwise.api.verify import check_target
from meshwise.cluster.spec import ClusterSpec
from meshwise.errors import ClusterError, InfeasibleError, PlanError
from meshwise.plan.plan import Plan
from meshwise.plan.stage import Stage
from meshwise.planner.planned_pipeline import PlannedPipeline
from meshwise.targets.verification import Verification

pytestmark = pytest.mark.usefixtures("compiled_kernels")


class Planner:
    """Plans a pipeline within a share of the memory, and knows for which ones it was asked.

    Its plans differ in temporary values only, of which it can spare half.
    """

    def __init__(self, found: PlannedPipeline, *memory_bytes: int) -> None:
        self.found = found
        peaks = [stage.peak_bytes for stage in found.plan.stages]
        self.memory_bytes = memory_bytes or tuple(max(peaks) for _ in peaks)
        self.asked: list[float] = []

    def plan(self, share: float) -> PlannedPipeline:
        self.asked.append(share)
        stages: list[Stage] = []
        for stage, memory in zip(self.found.plan.stages, self.memory_bytes, strict=True):
            limit = int(share * memory)
            spared = max(stage.peak_bytes - limit, 0)
            if spared > stage.temporary_bytes // 2:
                raise InfeasibleError(f"nothing fits into {limit} bytes")
            left = stage.temporary_bytes - spared
            stages.append(replace(stage, temporary_bytes=left, memory_bytes=memory))
        return replace(self.found, plan=replace(self.found.plan, stages=tuple(stages)))


@pytest.fixture(scope="module")
def two_stages() -> PlannedPipeline:
    return perceptron_pipeline(num_stages=2)


@pytest.fixture
def planner(two_stages: PlannedPipeline) -> Planner:
    return Planner(two_stages)


def verified_at(found: PlannedPipeline, factor: float) -> Verification:
    """A compiler that needs so many times what was predicted."""
    return verification(found.plan, lambda predicted: int(factor * predicted))


def never_fits(found: PlannedPipeline) -> Verification:
    """A compiler that always needs a byte more than there is."""
    verified = verified_at(found, 1.0)
    stages = tuple(replace(s, compiled_bytes=s.limit_bytes + 1) for s in verified.stages)
    return replace(verified, stages=stages)


def test_a_plan_that_fits_is_taken_and_says_by_what(planner: Planner) -> None:
    found, verified = plan_verified(planner.plan, lambda p: verified_at(p, 1.0))
    assert planner.asked == [1.0]
    assert verified.fits
    assert found.plan.verified.startswith("a compiler 1.0 for h100: ")
    assert f"verified      {found.plan.verified}" in found.plan.explain()
    assert Plan.from_json(found.plan.to_json()).verified == found.plan.verified


def test_a_plan_of_which_the_compiler_needs_more_is_made_for_less(planner: Planner) -> None:
    told: list[str] = []
    found, verified = plan_verified(planner.plan, lambda p: verified_at(p, 1.02), told.append)
    assert verified.fits
    assert verified.compiled_bytes <= max(planner.memory_bytes)
    first, *later = planner.asked
    assert first == 1.0
    assert later
    assert all(x < 1.0 for x in later)
    assert len(told) == len(later)
    assert f"planned again for {later[0]:.1%} of the memory" in told[0]
    assert found.plan.verified


def test_the_share_is_that_of_the_fullest_stage_of_its_own_devices(
    two_stages: PlannedPipeline,
) -> None:
    first, second = two_stages.plan.stages
    # The second stage has devices of exactly what it needs, the first ones that are far from full.
    planner = Planner(two_stages, 3 * first.peak_bytes, second.peak_bytes)
    found, _ = plan_verified(planner.plan, lambda p: verified_at(p, 1.02))
    assert planner.asked[1] == pytest.approx(1 / 1.02, rel=1e-3)
    assert tuple(s.memory_bytes for s in found.plan.stages) == planner.memory_bytes
    small = Planner(two_stages, first.peak_bytes, 3 * second.peak_bytes)
    plan_verified(small.plan, lambda p: verified_at(p, 1.02))
    assert small.asked[1] == pytest.approx(1 / 1.02, rel=1e-3)


def test_where_the_target_has_less_than_the_devices_the_share_is_of_what_they_have(
    planner: Planner,
) -> None:

    def usable(found: PlannedPipeline) -> Verification:
        verified = verified_at(found, 1.0)
        stages = [replace(s, limit_bytes=int(0.98 * s.limit_bytes)) for s in verified.stages]
        return replace(verified, stages=tuple(stages))

    found, verified = plan_verified(planner.plan, usable)
    assert verified.fits
    assert planner.asked[1] == pytest.approx(0.98, rel=1e-3)
    assert tuple(s.memory_bytes for s in found.plan.stages) == planner.memory_bytes


def test_where_nothing_fits_by_the_compiler_the_error_says_what_it_needs(planner: Planner) -> None:
    with pytest.raises(InfeasibleError, match="no plan was found that fits by the compiler"):
        plan_verified(planner.plan, lambda p: verified_at(p, 10.0))


def test_with_pins_too_the_error_says_what_the_compiler_needs(planner: Planner) -> None:

    def pinned(share: float) -> PlannedPipeline:
        try:
            return planner.plan(share)
        except InfeasibleError as error:
            raise PlanError(f"no plan keeps pin 'remat=none': {error}") from error

    with pytest.raises(
        InfeasibleError, match=r"stage \d needs .*of which these numbers are: no plan keeps"
    ):
        plan_verified(pinned, lambda p: verified_at(p, 10.0))


def test_what_is_wrong_before_the_first_plan_is_said_as_it_is() -> None:

    def pinned(share: float) -> PlannedPipeline:
        raise PlanError("pins contradict each other")

    with pytest.raises(PlanError, match=r"^pins contradict each other$"):
        plan_verified(pinned, never_fits)


def test_a_compiler_that_always_needs_more_ends_the_search(planner: Planner) -> None:
    told: list[str] = []
    with pytest.raises(InfeasibleError, match=r"none of 6 plans fits by the compiler.*--memory"):
        plan_verified(planner.plan, never_fits, told.append)
    assert len(planner.asked) == 6
    assert all(less < more for more, less in pairwise(planner.asked))
    # It is told before each plan but the first: after the last one nothing is planned.
    assert len(told) == 5


def test_before_planning_devices_without_a_compiler_are_named() -> None:
    mixed = ClusterSpec.virtual("1x dgx-h100 + 1x dgx-a100")
    strange = replace(mixed.groups[1].host.device, name="abacus")
    host = replace(mixed.groups[1].host, device=strange)
    groups = (mixed.groups[0], replace(mixed.groups[1], host=host))
    with pytest.raises(ClusterError, match="no compiler is known for abacus"):
        check_target(replace(mixed, groups=groups))
