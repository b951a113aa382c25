"""Devices for which programs can be compiled without having one, by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from meshwise.errors import ClusterError
from meshwise.targets.compile_target import CompileTarget
from meshwise.targets.gpus import GPUS
from meshwise.targets.tpus import TPUS

_ALL: tuple[CompileTarget, ...] = (*GPUS, *TPUS)
TARGETS: Mapping[str, CompileTarget] = MappingProxyType({target.name: target for target in _ALL})


def target_of(device: str) -> CompileTarget:
    """Return the target that compiles for a device of the catalog of clusters.

    Args:
        device: Name of the device, as in `cluster.catalog`.

    Raises:
        ClusterError: there is no compiler for it.
    """
    for target in _ALL:
        if device in target.devices:
            return target
    raise ClusterError(f"no compiler is known for {device}; name a target: {', '.join(TARGETS)}")


def compile_target(name: str) -> CompileTarget:
    """Return a target by name.

    Args:
        name: Name of the target, as `h100`.

    Raises:
        ClusterError: there is no such target.
    """
    if name not in TARGETS:
        raise ClusterError(f"no target {name!r}; there are {', '.join(TARGETS)}")
    return TARGETS[name]
