"""The stage of a step that runs as one program on one mesh."""

from __future__ import annotations

from meshwise.cluster.mesh import LogicalMesh
from meshwise.cluster.spec import ClusterSpec
from meshwise.plan.counts.contents import arguments
from meshwise.plan.counts.shares import communication
from meshwise.plan.counts.work import DecidedProgram, Work
from meshwise.plan.offload import bytes_on_device
from meshwise.plan.stage import Layer, Stage


def program_stage(
    program: DecidedProgram,
    mesh: LogicalMesh,
    work: Work,
    *,
    step_time_s: float,
    peak_bytes: int,
    cluster: ClusterSpec | None = None,
) -> Stage:
    """Return the only stage of a plan whose step is one program; it may use all memory.

    Args:
        program: The step and its decision, which is number 0 of the plan.
        mesh: Where it runs.
        work: What it does.
        step_time_s: Time of a step, in seconds.
        peak_bytes: Peak memory of one device, in bytes.
        cluster: Where the mesh lies; None if only the mesh is known.

    Returns:
        The stage.
    """
    graph, decision = program.graph, program.decision
    found = arguments(graph, decision, communication(graph, decision, mesh))
    resident = min(bytes_on_device(graph, decision, mesh), peak_bytes)
    devices = mesh.num_devices
    a_host = devices if cluster is None else min(devices, cluster.devices_per_host)
    return Stage(
        layers=(Layer(layer=0, equal_to=0, arguments=found, decision=0),),
        submesh=(devices // a_host, a_host),
        first_device=0,
        mesh=mesh,
        once_s=step_time_s,
        resident_bytes=resident,
        temporary_bytes=peak_bytes - resident,
        memory_bytes=mesh.device.memory_bytes,
        device_flop=work.device_flop,
        dense=work.dense,
    )
