"""Meshwise: plans and runs JAX training steps on many devices.

Each name is imported when it is asked for, so that a command which needs no JAX does not load it,
and `meshwise doctor` answers where JAX is broken.
"""

import importlib
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshwise import errors as errors
    from meshwise.api import eqx as eqx
    from meshwise.api import nnx as nnx
    from meshwise.api.cluster import Cluster as Cluster
    from meshwise.api.parallelize import ParallelStep as ParallelStep
    from meshwise.api.parallelize import parallelize as parallelize
    from meshwise.hosts import ray as ray
    from meshwise.hosts.data.host_batch import host_batch as host_batch
    from meshwise.plan.plan import Plan as Plan
    from meshwise.request.methods import Auto as Auto
    from meshwise.request.methods import DataParallel as DataParallel
    from meshwise.request.methods import Follow as Follow
    from meshwise.request.methods import Heuristic as Heuristic
    from meshwise.request.methods import IntraOp as IntraOp
    from meshwise.request.methods import Megatron as Megatron
    from meshwise.request.methods import Replay as Replay
    from meshwise.request.methods import Zero2 as Zero2
    from meshwise.request.methods import Zero3 as Zero3
    from meshwise.request.pins import Pin as Pin
    from meshwise.rules.cudnn import cudnn_attention as cudnn_attention
    from meshwise.rules.kernel import sharded_kernel as sharded_kernel
    from meshwise.rules.kernel_loops import KernelLoops as KernelLoops
    from meshwise.spmd.specs import jax_mesh as jax_mesh
    from meshwise.spmd.specs import partition_specs as partition_specs
    from meshwise.spmd.specs import shardings as shardings
    from meshwise.trace.loss import grad as grad
    from meshwise.trace.loss import value_and_grad as value_and_grad
    from meshwise.train.stage_arrays import checkpoint_handler as checkpoint_handler

# Where the names above are; a test compares the two lists.
_NAMES = {
    "meshwise.api.parallelize": "ParallelStep parallelize",
    "meshwise.api.cluster": "Cluster",
    "meshwise.hosts.data.host_batch": "host_batch",
    "meshwise.request.methods": (
        "Auto DataParallel Follow Heuristic IntraOp Megatron Replay Zero2 Zero3"
    ),
    "meshwise.request.pins": "Pin",
    "meshwise.plan.plan": "Plan",
    "meshwise.rules.cudnn": "cudnn_attention",
    "meshwise.rules.kernel": "sharded_kernel",
    "meshwise.rules.kernel_loops": "KernelLoops",
    "meshwise.spmd.specs": "jax_mesh partition_specs shardings",
    "meshwise.trace.loss": "grad value_and_grad",
    "meshwise.train.stage_arrays": "checkpoint_handler",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}


_ROOMS = {"errors": "meshwise.errors", "ray": "meshwise.hosts.ray"}
# They import libraries that may not be there, so a star import leaves them out.
_FRAMEWORKS = {"eqx": "meshwise.api.eqx", "nnx": "meshwise.api.nnx"}
# `from meshwise import *` takes these, the lazy ones too.
__all__ = sorted([*_MODULES, *_ROOMS])  # pyright: ignore[reportUnsupportedDunderAll]
__version__: str


def __getattr__(name: str) -> Any:
    """A public name, imported and then kept."""
    if name == "__version__":
        return version("meshwise")
    if room := _ROOMS.get(name) or _FRAMEWORKS.get(name):
        return importlib.import_module(room)
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names."""
    return sorted([*__all__, *_FRAMEWORKS])
