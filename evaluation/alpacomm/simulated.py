"""A planned transfer between meshes, hop by hop on simulated network cards."""

from __future__ import annotations

from collections.abc import Sequence

from evaluation.transfers.dependent_flows import DependentFlow, FlowTimes, run_flows
from evaluation.transfers.hops import hops
from meshwise.resharding.cross_mesh.cross_mesh_plan import CrossMeshPlan
from meshwise.simulate.actions import Flow, HostLinks


def dependent_flows(plan: CrossMeshPlan) -> list[DependentFlow]:
    """Return the hops of a plan.

    A host sends its boxes in the order of the plan, each when the one before has left, and takes
    them in that order, each when the one before has come.
    """
    found: list[DependentFlow] = []
    left: dict[int, tuple[int, ...]] = {}
    came: dict[int, tuple[int, ...]] = {}
    for transfer in plan.transfers:
        task = plan.tasks[transfer.task]._replace(num_bytes=transfer.num_bytes)
        first = len(found)
        leaving: list[int] = []
        coming: dict[int, list[int]] = {host: [] for host in task.receivers}
        chunk_bytes = plan.chunk_bytes[transfer.task]
        for n, hop in enumerate(hops(plan.strategy, task, transfer.sender, chunk_bytes)):
            waits = [first + other for other in hop.waits]
            if hop.source == transfer.sender:
                waits += left.get(hop.source, ())
                leaving.append(first + n)
            if hop.source != hop.destination:
                waits += came.get(hop.destination, ())
                coming[hop.destination].append(first + n)
            flow = Flow(hop.source, hop.destination, hop.num_bytes)
            found.append(DependentFlow(flow, tuple(waits)))
        left[transfer.sender] = tuple(leaving)
        came.update((host, tuple(numbers)) for host, numbers in coming.items())
    return found


def simulated(plan: CrossMeshPlan, hosts: Sequence[HostLinks]) -> FlowTimes:
    """When every hop of a plan begins and ends.

    Args:
        plan: The plan.
        hosts: Links of each host, by number.
    """
    return run_flows(dependent_flows(plan), hosts)
