"""The link between process 0 and another process: its latency, and its bytes per second."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

from meshwise.hosts.messages import Channel, Message

_PINGS = 9
# Each way: enough for a connection to reach its speed, 0.3 s on 100 Mbit/s.
_NUM_BYTES = 2**22
_LIMIT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpeed:
    """A link to process 0, as measured through one TCP connection.

    Attributes:
        latency_s: Median time of a small message to the other process and back.
        bytes_per_s: Bytes both ways, one way after the other, by the time that they took.
    """

    latency_s: float
    bytes_per_s: float


def measured_link(channel: Channel) -> LinkSpeed:
    """Measure the link to a process that answers by `answer_link`.

    Args:
        channel: The connection to it.

    Returns:
        The link.

    Raises:
        OSError: the connection is broken, or slower than 1 MB/s.
    """
    times: list[float] = []
    for _ in range(_PINGS):
        start = time.monotonic()
        channel.send({"ask": "link", "num_bytes": 0}, limit_s=_LIMIT_S)
        channel.receive(limit_s=_LIMIT_S)
        times.append(time.monotonic() - start)
    start = time.monotonic()
    channel.send({"ask": "link", "num_bytes": _NUM_BYTES}, limit_s=_LIMIT_S)
    channel.send_bytes(_NUM_BYTES, limit_s=_LIMIT_S)
    channel.receive(limit_s=_LIMIT_S)
    channel.skip_bytes(_NUM_BYTES, limit_s=_LIMIT_S)
    seconds = time.monotonic() - start
    return LinkSpeed(latency_s=statistics.median(times), bytes_per_s=2 * _NUM_BYTES / seconds)


def answer_link(channel: Channel, request: Message) -> None:
    """Take and send back the bytes that process 0 asks for.

    Args:
        channel: The connection to process 0.
        request: What it asked.

    Raises:
        OSError: the connection is broken.
    """
    num_bytes = request["num_bytes"]
    assert isinstance(num_bytes, int)
    channel.skip_bytes(num_bytes, limit_s=_LIMIT_S)
    channel.send({"answer": "link"}, limit_s=_LIMIT_S)
    channel.send_bytes(num_bytes, limit_s=_LIMIT_S)
