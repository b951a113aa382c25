"""Hosts on which the same happens as on others: their flows need not be simulated.

Where stages lie on several hosts each, often the first host of one sends to the first host of the
next, the second to the second, and so on.  Hosts that flows join, directly or through others, are
a group; no other flow shares a port with theirs.  A group that has, in every boundary, the flows
of an earlier one between hosts with the same links does at each instant what that one does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from meshwise.simulate.links import Flow, HostLinks
from meshwise.simulate.stages import StageBoundary


def without_mirrored(
    boundaries: Sequence[StageBoundary], hosts: Sequence[HostLinks]
) -> list[StageBoundary]:
    """Return boundaries without the flows of groups of hosts that do what an earlier group does.

    A step takes as long as with them, rounding apart where hosts come in another order.

    Args:
        boundaries: What passes between stages.
        hosts: Links of the hosts that the flows name.
    """
    group = _groups(_flows(boundaries), len(hosts))
    # Hosts of each group in the order in which they appear, and what they do.
    places: dict[int, dict[int, int]] = {}
    deeds: dict[int, list[object]] = {}
    for at, boundary in enumerate(boundaries):
        for direction, flows in enumerate((boundary.forward, boundary.backward)):
            for flow in flows:
                of = group[flow.source]
                place = places.setdefault(of, {})
                ends = [place.setdefault(h, len(place)) for h in (flow.source, flow.destination)]
                deeds.setdefault(of, []).append((at, direction, *ends, *flow[2:]))
    first: dict[object, int] = {}
    kept: set[int] = set()
    for of, deed in deeds.items():
        links = tuple(hosts[h] for h in places[of])
        if first.setdefault((links, tuple(deed)), of) == of:
            kept.add(of)
    return [
        replace(
            boundary,
            forward=tuple(f for f in boundary.forward if group[f.source] in kept),
            backward=tuple(f for f in boundary.backward if group[f.source] in kept),
        )
        for boundary in boundaries
    ]


def _flows(boundaries: Sequence[StageBoundary]) -> Iterator[Flow]:
    for boundary in boundaries:
        yield from boundary.forward
        yield from boundary.backward


def _groups(flows: Iterator[Flow], num_hosts: int) -> list[int]:
    """Return for each host the group that it belongs to."""
    parent = list(range(num_hosts))

    def root(host: int) -> int:
        while parent[host] != host:
            parent[host] = host = parent[parent[host]]
        return host

    for flow in flows:
        parent[root(flow.destination)] = root(flow.source)
    return [root(host) for host in range(num_hosts)]
