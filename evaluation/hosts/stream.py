"""The rate of a plain TCP stream between two hosts: what no transport can beat with one stream."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from evaluation.hosts.iproute import TestbedError
from evaluation.hosts.testbed import Testbed

_SCRIPT = str(Path(__file__).with_name("stream_end.py"))
# -I -S: it needs nothing but the standard library, and starts in 10 ms.
_END = (sys.executable, "-I", "-S", _SCRIPT)


def plain_stream(
    testbed: Testbed, source: int, destination: int, num_bytes: int, timeout_s: float = 60.0
) -> float:
    """Measure the rate of one transfer over a connection that is open already.

    Args:
        testbed: The hosts.
        source: The number of the host that sends.
        destination: The number of the host that receives, and answers when it has all.
        num_bytes: What is sent.
        timeout_s: After this time it ends with an error.

    Returns:
        The rate in bytes a second.

    Raises:
        TestbedError: an end failed, or it took longer.
    """
    address = testbed.address(destination)
    receiver = testbed.start(destination, [*_END, "receive", address], output=subprocess.PIPE)
    assert receiver.stdout is not None
    with receiver:
        try:
            port = receiver.stdout.readline().strip()
            if not port.isdecimal():
                raise TestbedError(f"the receiver failed:\n{port}\n{receiver.stdout.read()}")
            sender = [*_END, "send", address, port, str(num_bytes)]
            return num_bytes / float(testbed.run(source, sender, timeout_s=timeout_s))
        finally:
            receiver.kill()
