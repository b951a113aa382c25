"""What processes tell of the calls of a step is put together."""

from __future__ import annotations

from typing import Any

import pytest

from meshwise.api.step_record import Told, hosts_of
from meshwise.report.host_stats import slowest_host


def told(*calls_s: float | None, busy_s: float | None = None) -> Told:
    return Told(
        name="node",
        calls_s=calls_s,
        busy_s=busy_s,
        exposed_s=None,
        held_bytes=1,
        peak_bytes=2,
        program_bytes=0,
    )


def test_the_process_that_comes_last_is_the_slowest() -> None:
    hosts = hosts_of([told(-3.0, -2.0, -1.0), told(-2.75, -1.5, -0.75), told(-2.9, -1.9, -0.95)])
    assert [host.late_s for host in hosts] == pytest.approx([0.0, 0.25, 0.1])
    assert [host.step_s for host in hosts] == pytest.approx([1.0, 1.0, 0.975])
    assert slowest_host(hosts) is hosts[1]


def test_work_counts_beside_lateness() -> None:
    hosts = hosts_of([told(-1.0, busy_s=0.5), told(-0.75, busy_s=0.125)])
    assert slowest_host(hosts) is hosts[0]


def test_a_measured_call_is_no_step_time() -> None:
    (host,) = hosts_of([told(-9.0, -8.0, None, -2.0, -1.0)])
    assert (host.step_s, host.late_s) == (1.0, None)


@pytest.mark.parametrize(
    "processes", [[told()], [told(-1.0)], [told(), told()], [told(None), told(None)]]
)
def test_what_is_not_known_is_none(processes: Any) -> None:
    hosts = hosts_of(processes)
    assert hosts[0].step_s is None
    assert slowest_host(hosts) is None
