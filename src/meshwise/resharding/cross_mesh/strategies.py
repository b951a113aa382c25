"""Ways in which one host sends a box to all devices that need it.

With t the seconds of the box over one network card, A receiving hosts and B devices of each:

- send/recv: a copy for every device, `A B t`;
- local all-gather: every host gets it once, in parts for its devices, which gather them: `A t`;
- global all-gather: every device gets another part, and all gather them around a ring through the
  hosts. Of the first of its A - 1 steps only the last of B parts comes after all have been sent:
  `t + t (A - 2 + 1 / B) / A`, nearly `2 t` for many hosts, and `t` for one;
- broadcast: host sends to host in a chain, in K chunks: `t + (A - 1) t / K`.

Source: AlpaComm section 3.1 (docs/facts.md section 3).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from meshwise.resharding.cross_mesh.host_tasks import HostTask

SEND_RECV, GATHERED = "send/recv", "local all-gather"
GLOBAL_GATHERED, BROADCAST = "global all-gather", "broadcast"
STRATEGIES: Mapping[str, str] = MappingProxyType(
    {
        SEND_RECV: "every device is sent what it needs",
        GATHERED: "each host is sent every box once, and its devices gather the parts",
        GLOBAL_GATHERED: "every box is sent once in all, and all devices gather the parts",
        BROADCAST: "every box goes along a chain of hosts, slice by slice",
    }
)
# Source: AlpaComm section 3.1 has about 100.
NUM_CHUNKS = 100
# What a chunk takes from device to device of a host, as a part of what it takes between hosts.
# Assumed: NVLink beside network cards, copies in memory beside a link of 0.4 Gb/s.
INSIDE_PART = 1 / 32


def seconds(
    strategy: str, task: HostTask, bytes_per_s: float, chunk_bytes: float | None = None
) -> float:
    """Return the seconds from the first byte of a box to its last one.

    Args:
        strategy: One of `STRATEGIES`.
        task: The box.
        bytes_per_s: Rate of a network card, in each direction.
        chunk_bytes: Of one chunk of a broadcast; a hundredth of the box by default.

    Raises:
        ValueError: there is no such strategy.
    """
    once_s = task.num_bytes / bytes_per_s
    hosts = len(task.receivers)
    match strategy:
        case "send/recv":
            return sum(task.devices) * once_s
        case "local all-gather":
            return hosts * once_s
        case "global all-gather":
            if hosts == 1:
                return once_s
            return once_s + once_s * (hosts - 2 + 1 / min(task.devices)) / hosts
        case "broadcast":
            chunk = task.num_bytes / NUM_CHUNKS if chunk_bytes is None else chunk_bytes
            return once_s + (hosts - 1) * min(chunk, task.num_bytes) / bytes_per_s
        case _:
            raise ValueError(f"no strategy {strategy!r}; there are {', '.join(STRATEGIES)}")


def best_chunk_bytes(tasks: Sequence[HostTask], bytes_per_s: float, chunk_s: float) -> float:
    """Return the bytes of a chunk with which broadcasts of boxes, one after another, end first.

    With t the seconds of all that the busiest host receives, and a the part of a chunk's seconds
    that it takes inside the last host, `t + (A - 1 + a) t / K + K chunk_s` is least at
    `K = sqrt((A - 1 + a) t / chunk_s)` chunks in all.

    Args:
        tasks: The boxes, at least one.
        bytes_per_s: Rate of a network card, in each direction.
        chunk_s: What a chunk takes beside its bytes.
    """
    num_hosts = max(len(task.receivers) for task in tasks)
    num_bytes = max(received_bytes(tasks).values())
    fill_s = (num_hosts - 1 + INSIDE_PART) * num_bytes / bytes_per_s
    return num_bytes / max(1.0, math.sqrt(fill_s / chunk_s))


def received_bytes(tasks: Sequence[HostTask]) -> dict[int, float]:
    """Return the bytes that each host receives if it gets every box once.

    Args:
        tasks: The boxes.
    """
    found: dict[int, float] = {}
    for task in tasks:
        for host in task.receivers:
            found[host] = found.get(host, 0.0) + task.num_bytes
    return found
