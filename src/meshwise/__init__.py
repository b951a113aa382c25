"""Meshwise: plans and runs JAX training steps on many devices."""

from typing import TYPE_CHECKING, Any

from meshwise.api import ParallelStep as ParallelStep
from meshwise.api import parallelize as parallelize
from meshwise.local_cluster import Cluster as Cluster
from meshwise.methods import Auto as Auto
from meshwise.methods import DataParallel as DataParallel
from meshwise.methods import Follow as Follow
from meshwise.methods import Heuristic as Heuristic
from meshwise.methods import IntraOp as IntraOp
from meshwise.methods import Megatron as Megatron
from meshwise.methods import Replay as Replay
from meshwise.methods import Zero2 as Zero2
from meshwise.methods import Zero3 as Zero3
from meshwise.pins import Pin as Pin
from meshwise.plan.plan import Plan as Plan
from meshwise.rules.kernel import sharded_kernel as sharded_kernel
from meshwise.rules.kernel_loops import KernelLoops as KernelLoops
from meshwise.trace.loss import grad as grad
from meshwise.trace.loss import value_and_grad as value_and_grad

if TYPE_CHECKING:
    from meshwise.spmd.specs import partition_specs as partition_specs


def __getattr__(name: str) -> Any:
    """`partition_specs` is of the lowering, which a plan does not need: imported when asked for."""
    if name == "partition_specs":
        from meshwise.spmd.specs import partition_specs

        return partition_specs
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
