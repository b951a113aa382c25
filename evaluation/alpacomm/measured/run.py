"""A job on a testbed that measures transfers."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence

from evaluation.alpacomm.measured.results import Measured, from_line
from evaluation.alpacomm.measured.transfers import DEVICES_PER_HOST, num_hosts, sized_case
from evaluation.hosts.iproute import TestbedError
from evaluation.hosts.job import run_on_hosts
from evaluation.hosts.testbed import Testbed

_MODULE = "evaluation.alpacomm.measured.process"
_SHOWN_LINES = 40


def hosts_needed(cases: Sequence[str]) -> int:
    """Return the hosts that a testbed needs for some cases.

    Args:
        cases: Their names.
    """
    return max(2, *(num_hosts(sized_case(name, 1)) for name in cases))


def measure(
    testbed: Testbed,
    cases: Sequence[str],
    strategies: Sequence[str],
    mib: int,
    repeats: int,
    say: Callable[[str], object],
) -> list[Measured]:
    """Measure cases on the hosts of a testbed.

    Args:
        testbed: At least as many hosts as `hosts_needed` says.
        cases: Names of cases.
        strategies: Strategies.
        mib: The size of each tensor in MiB.
        repeats: How often each transfer is measured.
        say: Takes a line about each transfer as soon as it is measured.

    Returns:
        The results, plain transfers at the begin and at the end.

    Raises:
        TestbedError: a process failed.
    """
    found: list[Measured] = []
    others: list[str] = []
    lock = threading.Lock()

    def take(host: int, line: str) -> None:
        with lock:
            result = from_line(line)
            if result is None:
                others.append(f"[host {host}] {line}")
                return
            found.append(result)
            times = ", ".join(f"{s:.3f}" for s in result.seconds)
            say(f"case {result.case}, {result.way}: {times} s")

    settings = {
        "cases": list(cases),
        "strategies": list(strategies),
        "mib": mib,
        "repeats": repeats,
    }
    code = run_on_hosts(testbed, DEVICES_PER_HOST, [_MODULE, json.dumps(settings)], take)
    if code:
        text = "\n".join(others[-_SHOWN_LINES:])
        raise TestbedError(f"a process of the job ended with {code}:\n{text}")
    return found
