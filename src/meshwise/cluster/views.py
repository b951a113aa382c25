"""The logical meshes that a block of equal hosts can be seen as.

The devices of a block are numbered host by host; a logical mesh is those numbers in row-major
order.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence

import numpy as np

from meshwise.cluster.host import HostSpec
from meshwise.cluster.mesh import LogicalMesh, MeshAxis
from meshwise.errors import ClusterError

AXIS_NAMES = ("x", "y", "z", "w", "v", "u")
# More axes give the planner more layouts than it gains from; a user may still ask for them.
MAX_AXES = 3


def check_shape(shape: tuple[int, ...]) -> None:
    """Refuse what is no shape of a mesh.

    Raises:
        ClusterError: it has no axes, or one of no devices.
    """
    if not shape or any(size < 1 for size in shape):
        raise ClusterError(f"mesh shape {shape} must be one or more positive sizes")


def axis_names(shape: tuple[int, ...], names: Sequence[str] | None) -> tuple[str, ...]:
    """Return one name per axis: the given ones, or `x`, `y`, `z`, ...

    Raises:
        ClusterError: the names do not fit the shape.
    """
    if names is None:
        names = (*AXIS_NAMES, *(f"x{i}" for i in range(len(AXIS_NAMES), len(shape))))
        names = names[: len(shape)]
    if len(names) != len(shape) or len(set(names)) != len(names):
        raise ClusterError(
            f"mesh of shape {shape} needs {len(shape)} different axis names, got {list(names)}"
        )
    return tuple(names)


def logical_mesh(
    host: HostSpec, devices_per_host: int, shape: tuple[int, ...], names: tuple[str, ...]
) -> LogicalMesh:
    """Return a block of hosts as a logical mesh of all its devices.

    Args:
        host: The kind of each host.
        devices_per_host: Devices of each host that are in the block.
        shape: Size of each axis, major to minor.
        names: Names of the axes.
    """
    axes = (_axis(host, devices_per_host, shape, axis, name) for axis, name in enumerate(names))
    return LogicalMesh(axes=tuple(axes), device=host.device)


def view_shapes(
    host: HostSpec, devices_per_host: int, count: int, max_axes: int
) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of a block of `count` devices that are worth a try.

    All ordered factorisations into at most `max_axes` axes, except those whose axes are the same
    as those of an earlier one in another order.
    """
    seen: set[tuple[tuple[int, float, float, float], ...]] = set()
    shapes: list[tuple[int, ...]] = []
    for shape in factorisations(count, max_axes):
        axes = logical_mesh(host, devices_per_host, shape, axis_names(shape, None)).axes
        kinds = tuple(
            sorted((a.size, a.latency_s, a.link_bytes_per_s, a.exchange_bytes_per_s) for a in axes)
        )
        if kinds not in seen:
            seen.add(kinds)
            shapes.append(shape)
    return tuple(shapes)


def _axis(
    host: HostSpec, devices_per_host: int, shape: tuple[int, ...], axis: int, name: str
) -> MeshAxis:
    """Return one axis; groups that leave a host share what the block reaches of its NICs.

    A group in ring order leaves a host once, so the share is one over the number of groups
    that have members both in the host and outside.  In an all-to-all, each of the m members in a
    host sends to n - m others through it; in a ring one member sends n - 1 blocks.
    """
    size, stride = shape[axis], math.prod(shape[axis + 1 :])
    leaving, together = _leaving(math.prod(shape), size, stride, devices_per_host)
    link = host.link
    if not leaving:
        return MeshAxis(
            name=name, size=size, latency_s=link.latency_s, link_bytes_per_s=link.bytes_per_s
        )
    share = host.fair_bytes_per_s(devices_per_host) / leaving
    slower = together * (size - together) / (size - 1)
    return MeshAxis(
        name=name,
        size=size,
        latency_s=max(host.nic.latency_s, link.latency_s),
        link_bytes_per_s=min(share, link.bytes_per_s),
        exchange_bytes_per_s=min(share / slower, link.bytes_per_s) if slower > 1 else 0.0,
    )


@functools.lru_cache(maxsize=65536)
def _leaving(count: int, size: int, stride: int, devices_per_host: int) -> tuple[int, int]:
    """Return how many groups of an axis leave a host, and the most members of one in a host.

    The first number is of the host that most groups leave; both are 0 if none leaves.

    Args:
        count: Devices in all.
        size: Size of the axis.
        stride: Difference of the numbers of neighbours along the axis.
        devices_per_host: Devices of one host.
    """
    if count <= devices_per_host:
        return 0, 0
    hosts = np.arange(count).reshape(-1, size, stride).swapaxes(1, 2).reshape(-1, size)
    hosts //= devices_per_host
    # Hosts ascend along the axis: a group counts once in each of its hosts.
    hosts = hosts[hosts[:, 0] != hosts[:, -1]]
    if not len(hosts):
        return 0, 0
    is_first = np.ones(hosts.shape, bool)
    is_first[:, 1:] = hosts[:, 1:] != hosts[:, :-1]
    members = np.diff(np.flatnonzero(is_first), append=hosts.size)
    return int(np.bincount(hosts[is_first]).max()), int(members.max())


def factorisations(count: int, max_axes: int) -> list[tuple[int, ...]]:
    """Return ordered factorisations into factors above one, few axes first."""
    divisors = [d for d in range(2, count + 1) if count % d == 0]
    found: list[tuple[int, ...]] = [(count,)]
    for num_axes in range(2, max_axes + 1):
        for head in itertools.product(divisors, repeat=num_axes - 1):
            rest, odd = divmod(count, math.prod(head))
            if not odd and rest > 1:
                found.append((*head, rest))
    return found
