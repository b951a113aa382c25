"""What the engine runs: what meshes do, one thing after the other, and the messages between them.

Tables of numbers, not objects: a step of 128 stages and 1,024 micro-batches has half a million
actions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from meshwise.kernels.arrays import Floats, Ints
from meshwise.simulate.kernels.events import Messages
from meshwise.simulate.links import Flow


class Streams(NamedTuple):
    """What each mesh does; one action at a time, in the order of its stream.

    Attributes:
        first: For each mesh its first action, and how many actions there are.
        duration_s: For each action its seconds.
        start_bytes: Change of the mesh's memory when it starts.
        end_bytes: Change of the mesh's memory when it ends.
        first_wait: For each action its first place in `waits`, and how long that is.
        waits: Transfers to its mesh that must have arrived before it starts.
        first_make: For each action its first place in `makes`, and how long that is.
        makes: Transfers from its mesh that are ready when it ends; each is made once.
    """

    first: Ints
    duration_s: Floats
    start_bytes: Ints
    end_bytes: Ints
    first_wait: Ints
    waits: Ints
    first_make: Ints
    makes: Ints


class Transfers(NamedTuple):
    """Messages from one mesh to another; each arrives when its last flow ends.

    Attributes:
        source: For each transfer the mesh whose action makes it.
        destination: The mesh whose actions wait for it.
        kind: Its kind.
    """

    source: Ints
    destination: Ints
    kind: Ints


def messages_of(kinds: Sequence[tuple[Sequence[Flow], bool]]) -> Messages:
    """Return kinds of transfers.

    Args:
        kinds: For each kind its flows, all at once, and whether sender and receiver stop for it.
    """
    rows: list[tuple[bool, int, int]] = []
    groups: list[list[Flow]] = []
    for flows, blocking in kinds:
        rows.append((blocking and len(flows) > 0, len(flows), len(groups)))
        by_latency: dict[float, list[Flow]] = {}
        for flow in flows:
            by_latency.setdefault(flow.latency_s, []).append(flow)
        groups += by_latency.values()
    rows.append((False, 0, len(groups)))
    every = [flow for group in groups for flow in group]
    floats = [(flow.num_bytes, flow.limit_bytes_per_s, flow.latency_s) for flow in every]
    return Messages(
        kinds=np.array(rows, np.int64),
        groups=np.cumsum([0, *map(len, groups)], dtype=np.int64),
        flows=np.array([_ports(flow) for flow in every], np.int64).reshape(-1, 2),
        flow_floats=np.array(floats, np.float64).reshape(-1, 3),
    )


def lists(rows: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
    """Return for each list its first place in all of them together, and these.

    Args:
        rows: For each action its transfers.
    """
    first = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    return first, np.array([item for row in rows for item in row], np.int64)


def _ports(flow: Flow) -> tuple[int, int]:
    """Return the ports of a flow: three of each host, as `kernels.fair_shares` has them."""
    if flow.source == flow.destination:
        return 3 * flow.source + 2, -1
    return 3 * flow.source, 3 * flow.destination + 1
