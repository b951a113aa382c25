"""Meshwise: plans and runs JAX training steps on many devices."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    from meshwise.spmd.specs import partition_specs as partition_specs
    from meshwise.trace.loss import grad as grad
    from meshwise.trace.loss import value_and_grad as value_and_grad

# Where each name is.  They are imported when they are asked for: most need JAX, which takes longer
# to import than `meshwise solve` may take in all.
_MODULES = {
    "api": ("ParallelStep", "parallelize"),
    "local_cluster": ("Cluster",),
    "methods": (
        "Auto", "DataParallel", "Follow", "Heuristic", "IntraOp", "Megatron", "Replay", "Zero2",
        "Zero3",
    ),
    "pins": ("Pin",),
    "plan.plan": ("Plan",),
    "rules.kernel": ("sharded_kernel",),
    "rules.kernel_loops": ("KernelLoops",),
    "spmd.specs": ("partition_specs",),
    "trace.loss": ("grad", "value_and_grad"),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import what is asked for."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
