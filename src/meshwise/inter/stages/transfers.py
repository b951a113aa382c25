"""Seconds that activations and their cotangents take from one stage to the next."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from meshwise.cluster.submesh import SubmeshKind
from meshwise.inter.cost_table.variant_costs import LayerSource


def bytes_per_s(
    left: SubmeshKind,
    right: SubmeshKind,
    is_inner: bool | None = None,
    *,
    num_hosts: int = 2,
) -> tuple[float, float]:
    """Bandwidth between two neighbouring submeshes, each byte sent once, and latency.

    Of more than two hosts, one that is cut into stages has boundaries to others at its first stage
    and at its last one.  Their transfers meet, and each gets half of a NIC that both stages use.

    Args:
        left: One of them.
        right: The other.
        is_inner: Whether the right one follows a device of its own host; where that is not known,
            two that fit into one host together are taken to lie in one.
        num_hosts: Of the cluster.
    """
    hosts = (left.host, right.host)
    if (
        is_inner is not False
        and left.num_hosts == right.num_hosts == 1
        and left.host == right.host
        and left.num_devices + right.num_devices <= left.host.num_devices
    ):
        link = left.host.link
        return min(left.num_devices, right.num_devices) * link.bytes_per_s, link.latency_s
    rates = [_leaving_bytes_per_s(kind, num_hosts) for kind in (left, right)]
    return min(rates), max(max(h.nic.latency_s, h.link.latency_s) for h in hosts)


def _leaving_bytes_per_s(kind: SubmeshKind, num_hosts: int) -> float:
    """Bandwidth from a submesh to other hosts."""
    host = kind.host
    shares_nic = kind.devices_per_host * host.num_nics % host.num_devices != 0
    alone = kind.num_hosts * host.alone_bytes_per_s(kind.devices_per_host)
    return alone / 2 if shares_nic and num_hosts > 2 else alone


def transfer_s(
    source: LayerSource,
    kinds: Sequence[SubmeshKind],
    num_microbatches: int,
    is_inner: Sequence[bool | None] | None = None,
    *,
    num_hosts: int = 2,
) -> NDArray[np.float64]:
    """Seconds of one micro-batch over each cut between each two kinds of submeshes.

    Args:
        source: The layers.
        kinds: Of submeshes.
        num_microbatches: B.
        is_inner: For each kind as in `bytes_per_s`, where it is the right one.
        num_hosts: As in `bytes_per_s`.

    Returns:
        Forward and backward together; shape (L - 1, M, M).
    """
    count = len(source.classes) - 1
    crossing = np.array([source.crossing_bytes(k) for k in range(count)], np.float64)
    out = np.zeros((count, len(kinds), len(kinds)))
    for a, left in enumerate(kinds):
        for b, right in enumerate(kinds):
            inside = None if is_inner is None else is_inner[b]
            rate, latency_s = bytes_per_s(left, right, inside, num_hosts=num_hosts)
            out[:, a, b] = 2 * (crossing / num_microbatches / rate + latency_s)
    return out
