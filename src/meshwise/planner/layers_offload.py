"""State of the layers of a pipeline in the memory of hosts."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

from meshwise.cluster.mesh import DeviceSpec
from meshwise.errors import PlanError
from meshwise.graph.layout import local_shape
from meshwise.plan.offload import offloadable
from meshwise.planner.offload import ALL_IN_HOST, check_room, possible_offload
from meshwise.planner.planned_pipeline import PlannedPipeline
from meshwise.trace.layers.equations import variables
from meshwise.trace.layers.layering import Layering


def layers_offload(layers: Layering, asked: bool | None, device: DeviceSpec) -> bool | None:
    """Return whether state stays in the memory of hosts; None: where nothing fits without.

    Args:
        layers: The layers; what is a stack of several stays on the devices.
        asked: What is asked for.
        device: The devices.

    Raises:
        PlanError: it is asked for, and the state has stacks, or the way to the hosts is not known.
    """
    found, ends = possible_offload(asked, device), layers.ends
    if found is False or ends is None:
        return found
    stacks = [i for i, _ in ends.original.aliases if ends.arguments[i].dim is not None]
    if stacks and found:
        raise PlanError(
            f"offload=True: {ends.original.names[stacks[0]]} is a stack of layers, which stays on "
            "the devices of a pipeline; give each layer arrays of its own, or plan for one mesh"
        )
    elsewhere = _read_elsewhere(layers)
    if elsewhere and found:
        raise PlanError(
            f"offload=True: {layers.split.names[elsewhere[0]]} is read not only by the update of "
            "its own layer, and stays on the devices of a pipeline; plan for one mesh, or leave "
            "offload out"
        )
    return False if stacks or elsewhere else found


def _read_elsewhere(layers: Layering) -> list[int]:
    """Return the state, parameters apart, that more than the update of one layer reads."""
    split, update = layers.split, layers.update
    forward, joined = split.forward.jaxpr, [v for e in update.joining for v in e.outvars]
    common = update.behind([*joined, *variables(update.common_results().values())])
    read = {update.position[v] for e in common for v in variables(e.invars) if v in update.position}
    place = {v: i for i, v in enumerate(forward.invars)}
    read |= {place[v] for e in forward.eqns for v in variables(e.invars) if v in place}
    readers = Counter(i for k in range(len(layers.ranges)) for i in update.share(k, k).arguments)
    parameters = {place[v] for v in split.roots if v in place}
    return [
        i
        for i, _ in sorted(split.aliases)
        if i not in parameters and split.in_avals[i].shape and (i in read or readers[i] > 1)
    ]


def offloadable_bytes(layers: Layering) -> int:
    """Return the bytes of the state of all layers that may stay in the memory of hosts.

    Args:
        layers: The layers.
    """
    known: dict[int, int] = {}
    for k in set(layers.classes):
        graph = layers.graph(k, k, 1).graph
        known[k] = sum(graph.tensors[graph.inputs[i]].num_bytes for i in offloadable(graph))
    return sum(known[k] for k in layers.classes)


def checked_hosts(found: PlannedPipeline) -> PlannedPipeline:
    """Return a pipeline whose hosts have room for its state; its text says what lies there.

    Raises:
        InfeasibleError: they have not.
    """
    plan = found.plan
    held = [0] * plan.num_meshes
    for m, stage in zip(plan.mesh_of_stage, plan.stages, strict=True):
        for argument in stage.arguments:
            if argument.in_host:
                shape = local_shape(argument.shape, argument.layout, stage.mesh.sizes)
                held[m] += math.prod(shape) * argument.itemsize
        check_room(held[m], stage.mesh.device)
    return replace(found, plan=replace(plan, space=f"{plan.space}; {ALL_IN_HOST}"))
