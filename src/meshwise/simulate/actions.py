"""What the engine runs: actions of meshes, and the transfers between them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLinks:
    """What one host's flows share.

    Attributes:
        nic_bytes_per_s: Bandwidth of the network card in each direction: it is full duplex.
        link_bytes_per_s: Bandwidth of the links inside the host, for all flows that stay there.
    """

    nic_bytes_per_s: float
    link_bytes_per_s: float


class Flow(NamedTuple):
    """Bytes from one host to another, or within one.

    Attributes:
        source: Index of a host.
        destination: Index of a host; the same one for a flow through the links inside it.
        num_bytes: Bytes to move.
        latency_s: Seconds before the first byte moves; nothing is occupied meanwhile.
        limit_bytes_per_s: Rate that the flow cannot exceed even alone, as the link of one device.
    """

    source: int
    destination: int
    num_bytes: float
    latency_s: float = 0.0
    limit_bytes_per_s: float = math.inf


class Transfer(NamedTuple):
    """A message from one mesh to another; it arrives when its last flow ends.

    Attributes:
        name: The name for messages.
        source: Mesh whose action makes it.
        destination: Mesh whose actions wait for it.
        flows: The flows, all at once; none for a message that arrives when it is made.
        blocking: Whether sender and receiver do nothing else meanwhile.  The transfer starts when
            neither is in the midst of an action; the sender waits for that, and goes on after it.
    """

    name: str
    source: int
    destination: int
    flows: tuple[Flow, ...] = ()
    blocking: bool = False


class Action(NamedTuple):
    """Something that a mesh does; it does one at a time, in the order of its stream.

    Attributes:
        name: The name for messages.
        duration_s: Seconds.
        waits: Indices of transfers that must have arrived before it starts.
        makes: Indices of transfers that are ready when it ends.
        start_bytes: Change of the mesh's memory when it starts.
        end_bytes: Change of the mesh's memory when it ends.
    """

    name: str
    duration_s: float
    waits: tuple[int, ...] = ()
    makes: tuple[int, ...] = ()
    start_bytes: int = 0
    end_bytes: int = 0
