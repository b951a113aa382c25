"""Meshwise: plans and runs JAX training steps on many devices.

Each name is imported when it is asked for, so that a command which needs no JAX does not load it,
and `meshwise doctor` answers where JAX is broken.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshwise import errors as errors
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

# Where the names above are; a test compares the two lists.
_NAMES = {
    "meshwise.api": "ParallelStep parallelize",
    "meshwise.local_cluster": "Cluster",
    "meshwise.methods": "Auto DataParallel Follow Heuristic IntraOp Megatron Replay Zero2 Zero3",
    "meshwise.pins": "Pin",
    "meshwise.plan.plan": "Plan",
    "meshwise.rules.kernel": "sharded_kernel",
    "meshwise.rules.kernel_loops": "KernelLoops",
    "meshwise.spmd.specs": "partition_specs",
    "meshwise.trace.loss": "grad value_and_grad",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """A public name, imported and then kept."""
    if name == "errors":
        return importlib.import_module("meshwise.errors")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names."""
    return sorted([*_MODULES, "errors"])
