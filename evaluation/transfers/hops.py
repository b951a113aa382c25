"""What moves from host to host while a box is sent, for the simulator of flows."""

from __future__ import annotations

from typing import NamedTuple

from meshwise.resharding.cross_mesh.host_tasks import HostTask
from meshwise.resharding.cross_mesh.strategies import NUM_CHUNKS, STRATEGIES


class Hop(NamedTuple):
    """Bytes from host to host, or inside one.

    Attributes:
        source: Host.
        destination: Host; the same one for what passes inside it.
        num_bytes: How many.
        part: Which part of the box, and of how many equal ones; (0, 1) is all of it.
        waits: Hops of the same box, by number, that must have arrived before.
    """

    source: int
    destination: int
    num_bytes: float
    part: tuple[int, int] = (0, 1)
    waits: tuple[int, ...] = ()


def hops(strategy: str, task: HostTask, sender: int, chunk_bytes: float | None = None) -> list[Hop]:
    """What moves, hop by hop.

    Args:
        strategy: One of `STRATEGIES`.
        task: The box.
        sender: Host that sends it.
        chunk_bytes: Of one chunk of a broadcast; a hundredth of the box by default.

    Raises:
        ValueError: there is no such strategy.
    """
    match strategy:
        case "send/recv":
            return [
                Hop(sender, host, task.num_bytes)
                for host, devices in zip(task.receivers, task.devices, strict=True)
                for _ in range(devices)
            ]
        case "local all-gather":
            sent = [Hop(sender, host, task.num_bytes) for host in task.receivers]
            return _gathered_inside(task, sent, [(n,) for n in range(len(sent))])
        case "global all-gather":
            return _around_a_ring(task, sender)
        case "broadcast":
            chunk = task.num_bytes / NUM_CHUNKS if chunk_bytes is None else chunk_bytes
            return _chain(task, sender, max(1, round(task.num_bytes / chunk)))
        case _:
            raise ValueError(f"no strategy {strategy!r}; there are {', '.join(STRATEGIES)}")


def _around_a_ring(task: HostTask, sender: int) -> list[Hop]:
    """Each host gets its share, and passes on what it got last until all have all."""
    hosts = task.receivers
    share = task.num_bytes / len(hosts)
    count = len(hosts)
    found = [Hop(sender, host, share, (n, count)) for n, host in enumerate(hosts)]
    for step in range(1, count):
        # The hop that brought host n what it passes on, and what its right neighbour had last.
        first = (step - 1) * count
        for n, host in enumerate(hosts):
            right = (n + 1) % count
            came = first + (n if step == 1 else (n - 1) % count)
            before = first + (right if step == 1 else n)
            part = found[came].part
            found.append(Hop(host, hosts[right], share, part, (came, before)))
    last = (count - 1) * count
    behind = [(last + (n if count == 1 else (n - 1) % count),) for n in range(count)]
    return _gathered_inside(task, found, behind)


def _gathered_inside(task: HostTask, found: list[Hop], behind: list[tuple[int, ...]]) -> list[Hop]:
    """Devices of each host gather what came to the others, each from its neighbour."""
    return found + [
        Hop(host, host, task.num_bytes * (devices - 1) / devices, waits=waits)
        for host, devices, waits in zip(task.receivers, task.devices, behind, strict=True)
        for _ in range(devices)
        if devices > 1
    ]


def _chain(task: HostTask, sender: int, num_chunks: int) -> list[Hop]:
    """Chunk after chunk along the hosts; each hop waits for the chunk, and for the one before."""
    found: list[Hop] = []
    places = (sender, *task.receivers)
    hosts = len(task.receivers)
    size = task.num_bytes / num_chunks
    for c in range(num_chunks):
        for n in range(hosts):
            at = len(found)
            came = (at - 1,) if n else ()
            before = (at - hosts,) if c else ()
            part = (c, num_chunks)
            found.append(Hop(places[n], places[n + 1], size, part, (*came, *before)))
    return found
