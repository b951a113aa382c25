"""Stages on a uniform cluster: which devices each of them gets.

Larger submeshes are placed first.  Sizes inside a host are powers of two, so each next one is a
divisor of the hole that is left in a host, and every hole can be filled to the end: any choice of
such submeshes with at most the cluster's devices in all has a place.

Source: Alpa appendix A.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshwise.errors import ClusterError
from meshwise.units import counted


def place_stages(
    shapes: Sequence[tuple[int, int]], num_hosts: int, devices_per_host: int
) -> tuple[int, ...]:
    """First device of each stage, in the order of the pipeline.

    Each stage gets whole hosts in a row, or an aligned run of devices of one host.  Which hosts
    goes by larger submeshes first; neighbours in the pipeline are then close together, since
    whole-host stages take hosts, and equal or smaller parts of hosts the free places, in the
    order of the pipeline.

    Args:
        shapes: (hosts, devices of each) of every stage; either one host and a power of two, or
            whole hosts.
        num_hosts: Hosts of the cluster.
        devices_per_host: Devices of each, a power of two.

    Raises:
        ClusterError: a shape is none of these, or there are too few devices.
    """
    for shape in shapes:
        _check_shape(shape, devices_per_host)
    needed = sum(n * m for n, m in shapes)
    if needed > num_hosts * devices_per_host:
        raise ClusterError(
            f"stages need {counted(needed, 'device')}; the cluster has "
            f"{num_hosts * devices_per_host}"
        )
    bins = _fill_hosts(shapes, devices_per_host)
    first_device = [0] * len(shapes)
    next_host = 0
    # Hosts are numbered by the stage that comes first in the pipeline among those that use them.
    for members in sorted(bins, key=min):
        num_taken = max(1, shapes[members[0]][0])
        offset = 0
        # Larger ones first keeps the runs aligned.
        for stage in sorted(members, key=lambda i: (-shapes[i][1], i)):
            first_device[stage] = next_host * devices_per_host + offset
            offset += shapes[stage][1]
        next_host += num_taken
    return tuple(first_device)


def _fill_hosts(shapes: Sequence[tuple[int, int]], devices_per_host: int) -> list[list[int]]:
    """Stages that share a host, or one stage of whole hosts, each as a list.

    Larger first; among hosts with room the one whose stages are nearest in the pipeline.
    """
    bins: list[list[int]] = []
    room: list[int] = []
    for stage in sorted(range(len(shapes)), key=lambda i: (-shapes[i][0] * shapes[i][1], i)):
        size = shapes[stage][0] * shapes[stage][1]
        # A partly used host is filled before another is opened: else too few would be left.
        fitting = [b for b in range(len(bins)) if room[b] >= size]
        if fitting:
            chosen = min(fitting, key=lambda b: (min(abs(stage - i) for i in bins[b]), b))
            bins[chosen].append(stage)
            room[chosen] -= size
        else:
            bins.append([stage])
            room.append(max(0, devices_per_host - size))
    return bins


def _check_shape(shape: tuple[int, int], devices_per_host: int) -> None:
    hosts, devices = shape
    is_part = hosts == 1 and 1 <= devices <= devices_per_host and not devices & (devices - 1)
    is_whole = hosts >= 1 and devices == devices_per_host
    if not is_part and not is_whole:
        raise ClusterError(
            f"submesh {shape} is neither whole hosts of {devices_per_host} devices nor a power of "
            "two inside one"
        )
