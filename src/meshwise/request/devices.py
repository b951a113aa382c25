"""How many devices a plan will need, known before it is made."""

from __future__ import annotations

import math
from collections.abc import Callable

from meshwise.cluster.spec import ClusterSpec
from meshwise.plan.record import ONE_PROGRAM
from meshwise.request.methods import Follow, Heuristic, IntraOp, Megatron, Method, Replay


def devices_needed(method: Method, cluster: Callable[[], ClusterSpec]) -> int:
    """Return how many devices a step needs to run; 0 where it follows another step.

    Args:
        method: How its plan is found.
        cluster: Returns the cluster for which it is planned.
    """
    match method:
        case Replay(plan=plan) if plan.schedule == ONE_PROGRAM:
            return plan.mesh.num_devices
        case Replay(plan=plan):
            # Also devices between those of stages, which may be idle.
            return 0 if plan.cluster is None else plan.cluster.num_devices
        case Follow():
            return 0
        case IntraOp(mesh_shape=shape) | Heuristic(mesh_shape=shape) if shape is not None:
            return min(math.prod(shape), cluster().num_devices)
        case Megatron(dp=dp, tp=tp):
            return min(dp * tp, cluster().num_devices)
        case _:
            return cluster().num_devices
