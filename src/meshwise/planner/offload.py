"""State stays in the memory of hosts where it is asked for, or where memory binds."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

from meshwise.baselines.search import BOUNDED, MeshPlace
from meshwise.cluster.mesh import DeviceSpec
from meshwise.cluster.spec import ClusterSpec
from meshwise.errors import InfeasibleError, PlanError
from meshwise.graph.graph import Graph
from meshwise.intra.limit.refusal import NoSuchPlanError, smallest_refusal
from meshwise.intra.options import IntraResult
from meshwise.intra.plan_graph import relative_gap
from meshwise.memory.peak import peak
from meshwise.memory.targets import memory_model_of
from meshwise.plan.fits import check_state_fits
from meshwise.plan.offload import bytes_in_host, crossing_s, offloadable
from meshwise.plan.plan import Plan
from meshwise.request.methods import Auto, Method
from meshwise.trace.step import TracedStep
from meshwise.units import bytes_text

ALL_IN_HOST = "with all state that only the update reads in the memory of hosts"
SOME_IN_HOST = "with any of the state that only the update reads in the memory of hosts"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundStep:
    """A step and its plan.

    Attributes:
        step: The step.
        plan: The plan.
        least_s: No plan costs less, whatever the memory; 0 where that is not known.
        is_tight: Whether more memory may give a faster plan.
    """

    step: TracedStep
    plan: Plan
    least_s: float = 0.0
    is_tight: bool = False


# Plans with state in the memory of hosts or not, for at most so many micro-batches.
PlanSearch = Callable[[bool, float], FoundStep]


def asked_offload(method: Method, device: DeviceSpec) -> bool | None:
    """Return what a method asks of devices; see `possible_offload`."""
    return possible_offload(method.offload if isinstance(method, Auto) else False, device)


def possible_offload(asked: bool | None, device: DeviceSpec) -> bool | None:
    """Return whether state stays in the memory of hosts; None: where that is faster.

    Args:
        asked: What is asked for; None: what is faster.
        device: The devices.

    Raises:
        PlanError: it is asked for, and how fast a device reaches that memory is not known.
    """
    is_known = device.host_bytes_per_s > 0
    if asked and not is_known:
        raise PlanError(
            f"offload=True: how fast a {device.name} reaches the memory of its host is not "
            "known; say host_bytes_per_s and host_memory_bytes of the device in the description "
            "of the cluster"
        )
    if asked is None and not (is_known and memory_model_of(device).has_host_memory):
        return False
    return asked


def fastest(asked: bool | None, search: PlanSearch) -> FoundStep:
    """Return the fastest plan, with state in the memory of hosts or without.

    Where a plan fits without and more memory would not make it faster, no other is searched.

    Args:
        asked: Whether state stays there; None: where that is faster.
        search: Finds a plan.

    Raises:
        InfeasibleError: none fits.
    """
    if asked is not None:
        return search(asked, math.inf)
    try:
        plain = search(False, math.inf)
    except NoSuchPlanError:
        raise
    except InfeasibleError as error:
        try:
            return search(True, math.inf)
        except InfeasibleError as other:
            raise smallest_refusal([other, error]) from error
    if not plain.is_tight:
        return plain
    try:
        other = search(True, plain.plan.num_microbatches)
    except InfeasibleError:
        return plain
    return min(plain, _bounded(other, plain), key=lambda found: found.plan.step_time_s)


def _bounded(found: FoundStep, plain: FoundStep) -> FoundStep:
    """Return a plan with its distance to what no plan of either search is below."""
    cost = found.plan.step_time_s
    if found.plan.num_microbatches != plain.plan.num_microbatches or not plain.least_s:
        return found
    gap = relative_gap(cost, min(plain.least_s, cost))
    return dataclasses.replace(found, plan=dataclasses.replace(found.plan, gap=gap))


def check_offloadable(graph: Graph) -> None:
    """Check that a step has state that only its update reads.

    Raises:
        InfeasibleError: it has none.
    """
    if not offloadable(graph):
        raise InfeasibleError(
            "no state of this step can stay in the memory of hosts: each array that it returns "
            "anew meets no gradient, is not donated, or is read by a dense product, in a loop or "
            "in a branch too; leave offload out"
        )


def check_rest_fits(
    step: TracedStep, cluster: ClusterSpec, memory_bytes: int | None, *, offload: bool
) -> None:
    """Check that all devices together can hold what of the state stays on them.

    Args:
        step: The step.
        cluster: Where it runs.
        memory_bytes: Bytes of a device that it may use; None: what the cluster has.
        offload: Whether state stays in the memory of hosts.

    Raises:
        InfeasibleError: they cannot.
    """
    graph = step.graph
    apart = {*step.batch_dims, *(offloadable(graph) if offload else ())}
    rest = [t for i, t in enumerate(graph.inputs) if i not in apart]
    check_state_fits(sum(graph.tensors[t].num_bytes for t in rest), cluster, memory_bytes)


def check_host_memory(place: MeshPlace, result: IntraResult) -> None:
    """Check that hosts have room for the state that lies in their memory.

    Raises:
        InfeasibleError: they have not.
    """
    held = bytes_in_host(place.graph, result.decision, place.mesh)
    check_room(held, place.mesh.device)


def check_room(num_bytes: int, device: DeviceSpec) -> None:
    """Check that a host has room for the state that lies in its memory.

    Args:
        num_bytes: Bytes of one device.
        device: The device.

    Raises:
        InfeasibleError: it has not.
    """
    has = device.host_memory_bytes
    if num_bytes > has:
        raise InfeasibleError(
            f"{bytes_text(num_bytes)} of the state of each device would lie in the memory of its "
            f"host, where a device has {bytes_text(has)}; take more devices, or set "
            "host_memory_bytes of the device in the description of the cluster if that is too low"
        )


def least_in_host(place: MeshPlace, result: IntraResult) -> IntraResult:
    """Return a plan with no more in the memory of hosts than it takes to fit.

    Of the arrays that lie there, the smallest come back to the devices first.

    Args:
        place: Where the plan is for.
        result: The plan, with all state there.
    """
    decision, limit = result.decision, place.options.memory_bytes
    assert limit is not None

    def num_bytes(positions: tuple[int, ...]) -> int:
        return bytes_in_host(place.graph, decision, place.mesh, positions)

    order = sorted(decision.in_host, key=lambda i: (num_bytes((i,)), i))

    def after(count: int) -> IntraResult:
        back, left = tuple(order[:count]), tuple(sorted(order[count:]))
        found = dataclasses.replace(decision, in_host=left)
        saved_s = crossing_s(num_bytes(back), place.mesh.device)
        return dataclasses.replace(
            result,
            decision=found,
            objective_s=result.objective_s - saved_s,
            peak_bytes=peak(place.graph, found, place.mesh).num_bytes,
            bound_s=0.0,
            gap=math.inf,
            status=BOUNDED,
        )

    fits, too_many, best = 0, len(order) + 1, result
    # What comes back only adds to the peak.
    while too_many - fits > 1:
        count = (fits + too_many) // 2
        trial = after(count)
        if trial.peak_bytes <= limit:
            fits, best = count, trial
        else:
            too_many = count
    return best
