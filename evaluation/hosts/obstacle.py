"""Why a machine cannot have testbeds."""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import suppress

from evaluation.hosts.iproute import TestbedError, iproute
from evaluation.hosts.owner import prefix

_PROBE = ("tbf", "rate", "1mbit", "burst", "10kb", "latency", "50ms")


def obstacle() -> str | None:
    """Return why no testbed can be built here, as the reason of a skipped test.

    Returns:
        The reason; None if a testbed can be built.
    """
    if sys.platform != "linux":
        return f"a testbed of hosts needs network namespaces of Linux; this is {sys.platform}"
    if os.geteuid() != 0:
        return "a testbed of hosts needs root, to make network namespaces"
    if missing := [name for name in ("ip", "tc", "setpriv") if shutil.which(name) is None]:
        return f"a testbed of hosts needs iproute2, util-linux: {' and '.join(missing)} not found"
    name = prefix(0) + "probe"
    try:
        iproute("ip", "netns", "add", name)
        iproute("tc", "-netns", name, "qdisc", "replace", "dev", "lo", "root", *_PROBE)
    except TestbedError as error:
        return f"a testbed of hosts cannot be built: {error}"
    finally:
        with suppress(TestbedError):
            iproute("ip", "netns", "delete", name)
    return None
