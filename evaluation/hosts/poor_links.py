"""Links that lose and delay what they carry, made of TAP devices and a loop of this program.

They are for kernels without the module `sch_netem`, which does this itself.  Each end of a link is
a TAP device: what a host sends comes out of one as a frame, and is written into the other some time
later, or never.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
import random
import select
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path

_NAMED_NAMESPACES = Path("/run/netns")
_NEW_NETWORK = 0x40000000  # CLONE_NEWNET
_ATTACH = 0x400454CA  # TUNSETIFF
_TAP_OF_FRAMES = 0x1002  # IFF_TAP | IFF_NO_PI
_LARGEST_BYTES = 1 << 16


def tap(namespace: str, device: str) -> int:
    """Make a TAP device in a network namespace, and return a file with its frames.

    Afterwards this thread is in that namespace.

    Args:
        namespace: Its name.
        device: The name of the device.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    with (_NAMED_NAMESPACES / namespace).open() as there:
        if libc.setns(there.fileno(), _NEW_NETWORK):
            raise OSError(ctypes.get_errno(), f"the namespace {namespace} cannot be entered")
    found = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(found, _ATTACH, struct.pack("16sH22x", device.encode(), _TAP_OF_FRAMES))
    return found


def carry(
    links: Sequence[tuple[int, int]], *, loss: float, delay_s: float, jitter_s: float, seed: int = 0
) -> None:
    """Carry frames between the ends of links; this does not return.

    Args:
        links: For each link the files of its two ends.
        loss: Share of the frames that are lost.
        delay_s: How long a frame is under way, seconds.
        jitter_s: By how much that varies, seconds; frames may overtake each other.
        seed: Decides which are lost, and the delays.
    """
    rng = random.Random(seed)
    other = {end: link[1 - side] for link in links for side, end in enumerate(link)}
    poll = select.poll()
    for end in other:
        poll.register(end, select.POLLIN)
    under_way: list[tuple[float, int, int, bytes]] = []
    number = 0
    while True:
        wait_s = under_way[0][0] - time.monotonic() if under_way else 1.0
        for end, _ in poll.poll(max(wait_s, 0.0) * 1e3):
            try:
                frame = os.read(end, _LARGEST_BYTES)
            except OSError:  # The device is down.
                continue
            if rng.random() >= loss:
                number += 1
                at_s = time.monotonic() + delay_s + rng.uniform(-jitter_s, jitter_s)
                heapq.heappush(under_way, (at_s, number, other[end], frame))
        while under_way and under_way[0][0] <= time.monotonic():
            _, _, end, frame = heapq.heappop(under_way)
            try:
                os.write(end, frame)
            except OSError:  # The device is down: the frame is lost.
                continue


def main(loss: str, delay_s: str, jitter_s: str, *ends: str) -> None:
    """Make links, say "ready", and carry.

    Args:
        loss: As for `carry`.
        delay_s: As for `carry`.
        jitter_s: As for `carry`.
        ends: "namespace/device", two for each link.
    """
    files = [tap(*end.split("/")) for end in ends]
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    links = list(zip(files[::2], files[1::2], strict=True))
    carry(links, loss=float(loss), delay_s=float(delay_s), jitter_s=float(jitter_s))


if __name__ == "__main__":
    main(*sys.argv[1:])
