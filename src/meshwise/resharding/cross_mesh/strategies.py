"""Ways in which one host sends a box to all devices that need it.

With t the seconds of the box over one network card, A receiving hosts and B devices of each:

- send/recv: a copy for every device, `A B t`;
- local all-gather: every host gets it once, in parts for its devices, which gather them: `A t`;
- global all-gather: every device gets another part, and all gather them around a ring through the
  hosts: `t + t (A - 1) / A`, nearly `2 t`;
- broadcast: host sends to host in a chain, in K chunks: `t + (A - 1) t / K`.

Source: AlpaComm section 3.1 (docs/facts.md section 3).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from meshwise.resharding.cross_mesh.host_tasks import HostTask

SEND_RECV, GATHERED = "send/recv", "local all-gather"
GLOBAL_GATHERED, BROADCAST = "global all-gather", "broadcast"
STRATEGIES: Mapping[str, str] = MappingProxyType(
    {
        SEND_RECV: "every device is sent what it needs",
        GATHERED: "each host is sent every box once, and its devices gather the parts",
        GLOBAL_GATHERED: "every box is sent once in all, and all devices gather the parts",
        BROADCAST: "every box goes along a chain of hosts in chunks",
    }
)
# Source: AlpaComm section 3.1 has about 100.
NUM_CHUNKS = 100


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
            return once_s + once_s * (hosts - 1) / hosts
        case "broadcast":
            chunk = task.num_bytes / NUM_CHUNKS if chunk_bytes is None else chunk_bytes
            return once_s + (hosts - 1) * min(chunk, task.num_bytes) / bytes_per_s
        case _:
            raise ValueError(f"no strategy {strategy!r}; there are {', '.join(STRATEGIES)}")


def best_num_chunks(task: HostTask, bytes_per_s: float, chunk_s: float) -> int:
    """Return the number of chunks with which a broadcast of a box ends first.

    `t + (A - 1) t / K + K chunk_s` is least at `K = sqrt((A - 1) t / chunk_s)`.

    Args:
        task: The box.
        bytes_per_s: Rate of a network card, in each direction.
        chunk_s: What a chunk takes beside its bytes.
    """
    fill_s = (len(task.receivers) - 1) * task.num_bytes / bytes_per_s
    return min(max(1, round(math.sqrt(fill_s / chunk_s))), NUM_CHUNKS)
