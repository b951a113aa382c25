"""Room for what the search does not count: searched again with memory left free, or with more."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from meshwise.errors import InfeasibleError, MeshwiseError, PlanError
from meshwise.inter.search.least_memory import least_memory, no_pipeline_fits
from meshwise.inter.search.remedies import least_memory_counts
from meshwise.inter.search.search_space import SearchOptions
from meshwise.inter.search.unsearched_memory import NamedMemoryError, UnsearchedMemoryError
from meshwise.intra.limit.refusal import NoSuchPlanError
from meshwise.plan.places import device_memory_bytes
from meshwise.plan.text.device_memory import plan_memory
from meshwise.planner.memory_share import limited_plan
from meshwise.planner.one_search import LEAST_RESERVED, found_one, planned_together
from meshwise.planner.pinned_search import HOPELESS, MOST_RESERVED, PipelineSearch, never
from meshwise.planner.planned_pipeline import PlannedPipeline
from meshwise.units import bytes_text

_Found = TypeVar("_Found")
# Added to what refused stages leave free, as a share of the memory.
_A_BIT = 1e-3
# To say how much memory suffices so many amounts are tried, each more than the last by this part.
_MOST_TRIES, _MORE = 12, 0.05


def with_room(asked: PipelineSearch) -> PlannedPipeline | None:
    """Plan with `_with_some_room`; where nothing fits, name memory that is enough in the error.

    What the search does not count needs room too.  So the memory in the error is one with which a
    plan was really made; if that plan holds no more than there is, it is returned.
    """
    try:
        return _with_some_room(asked)
    except (InfeasibleError, PlanError) as error:
        named = _named_memory(error)
        is_memory = isinstance(error, InfeasibleError) and not isinstance(error, NoSuchPlanError)
        can_name = is_memory and not asked.pins
        if (named is None and not can_name) or not asked.seeks_remedies():
            raise
        found = _with_more_memory(asked, None if named is None else named.num_bytes)
        if found is None:
            if named is None:
                raise
            raise _reworded(error, named, named.text) from error
        enough, planned = found
        has, cluster = asked.options.memory_bytes, asked.cluster
        plan = limited_plan(planned.plan, lambda s: has or device_memory_bytes(s, cluster))
        if plan_memory(plan).fits:
            return replace(planned, plan=plan)
        if named is None:
            names = ", ".join(schedule.choice for schedule in asked.options.schedules)
            text = f"{no_pipeline_fits(asked.cluster, asked.options)} under schedule {names}"
            raise NamedMemoryError(text, enough) from error
        if enough == named.num_bytes:
            raise
        corrected = NamedMemoryError(named.text, enough)
        if error is named:
            raise corrected from error
        # What else the error says, as pins that are in the way, holds with this memory too.
        raise _reworded(error, named, str(corrected)) from error


def _named_memory(error: Exception) -> NamedMemoryError | None:
    """Return the error that names memory: this one, or its cause if the text repeats that."""
    for found in (error, error.__cause__):
        if isinstance(found, NamedMemoryError) and str(found) in str(error):
            return found
    return None


def _reworded(error: Exception, named: NamedMemoryError, text: str) -> MeshwiseError:
    """Return an error with another text in place of that which names memory."""
    kind = PlanError if isinstance(error, PlanError) else InfeasibleError
    return kind(str(error).replace(str(named), text))


def _with_more_memory(
    asked: PipelineSearch, num_bytes: int | None
) -> tuple[int, PlannedPipeline] | None:
    """Memory that is enough, and the pipeline planned with it; None if much more is needed.

    Args:
        asked: What is searched.
        num_bytes: Memory of a device with which a search finds something, if it is known.
    """
    options, (_, costs) = asked.options, asked.plans.of({})
    if num_bytes is None:  # there are no pins
        counts = least_memory_counts(options, asked.cluster.num_devices)
        least = least_memory(asked.cluster, options, costs, counts, asked.report)
        if least is None:
            return None
        num_bytes = max(least.num_bytes, (options.memory_bytes or 0) + 1)
    # What needs more memory than there is is not among what was compared.
    asked = replace(asked, seeks_remedies=never, simulated=[])
    for _ in range(_MOST_TRIES):
        asked.report(f"would it fit with {bytes_text(num_bytes)} a device?")
        more = replace(asked, options=replace(options, memory_bytes=num_bytes))
        try:
            return num_bytes, found_one(_with_some_room(more))
        except (InfeasibleError, PlanError) as error:
            missing = error.missing_share if isinstance(error, UnsearchedMemoryError) else 0.0
            num_bytes = math.ceil(num_bytes * (1 + max(missing, _MORE)))
    return None


def _with_some_room(asked: PipelineSearch) -> PlannedPipeline | None:
    """`planned_together` with room for what the search does not count.

    Returns:
        None if what was found takes no less than the cutoff, or has no room and takes clearly more.
    """

    def planned(options: SearchOptions) -> PlannedPipeline | None:
        is_first = options is asked.options
        seeks_remedies = asked.seeks_remedies if is_first else never
        try:
            return planned_together(replace(asked, options=options, seeks_remedies=seeks_remedies))
        except UnsearchedMemoryError as error:
            # Else a search with less memory hardly ever finds a faster one; that is not proved.
            if error.least_s <= HOPELESS * asked.cutoff_s:
                raise
            asked.report(f"{error}; not again, since others are faster")
            return None

    return with_memory_free(asked.options, planned, asked.report, asked.most_reserved)


def with_memory_free(
    options: SearchOptions,
    planned: Callable[[SearchOptions], _Found],
    report: Callable[[str], object],
    most_reserved: float = MOST_RESERVED,
) -> _Found:
    """Search with as much memory left free as what the search does not count needs.

    These are gradients of weights that wait, values of other layers that change their layout, and
    values that wait between layers.
    Where there is no room the search is repeated with so much memory left free, at least twice as
    much as before, and more than the stages just found leave free: with less the search would find
    the same stages again.  Where nothing fits then, it is repeated with amounts in between.

    Args:
        options: What is searched.
        planned: Searches with options.
        report: Is told of progress.
        most_reserved: Share of the memory that is left free at most.

    Returns:
        What the search found.

    Raises:
        UnsearchedMemoryError: there is no room, however much is left free.
        InfeasibleError: nothing fits.
        PlanError: nothing can be planned so.
    """
    least = share = options.reserved_share
    most = math.inf
    first: UnsearchedMemoryError | None = None
    while True:
        try:
            return planned(options)
        except UnsearchedMemoryError as error:
            first, last = first or error, error
            least = max(share, error.spare_share)
            more = max(error.missing_share, share, LEAST_RESERVED)
            share = max(share + more, least + _A_BIT)
            share = min(share, most_reserved, (least + most) / 2)
        except (InfeasibleError, PlanError) as error:
            # What is left free is not the fault of a pin.
            if first is None:
                raise
            most, last = share, error
            share = (least + share) / 2
        if most - least < 2 * LEAST_RESERVED:
            share = least + _A_BIT
        if not least < share < most:
            raise first from (None if last is first else last)
        report(f"{last}; again with {share:.1%} of the memory left free")
        options = replace(options, reserved_share=share)
