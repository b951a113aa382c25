"""Flows that wait for one another, by hand."""

from __future__ import annotations

import pytest
from evaluation.transfers.dependent_flows import DependentFlow, run_flows

from meshwise.errors import ProgramError
from meshwise.simulate.links import Flow, HostLinks

HOSTS = [HostLinks(nic_bytes_per_s=10.0, link_bytes_per_s=100.0)] * 4


def flow(source, destination, num_bytes, *waits, latency_s=0.0):
    return DependentFlow(Flow(source, destination, num_bytes, latency_s), waits)


def test_a_chain_of_chunks_is_a_pipeline():
    flows = []
    for _ in range(10):
        before = len(flows) - 2
        flows.append(flow(0, 1, 10, *[before][: before >= 0]))
        flows.append(flow(1, 2, 10, len(flows) - 1, *[before + 1][: before >= 0]))
    found = run_flows(flows, HOSTS)
    assert found.end_s[-2] == pytest.approx(10)
    assert found.makespan_s == pytest.approx(11)
    assert found.start_s[1] == pytest.approx(1)


def test_ports_are_shared_and_full_duplex():
    # Both leave host 0; the third comes to it meanwhile; the fourth stays inside.
    found = run_flows([flow(0, 1, 10), flow(0, 2, 10), flow(3, 0, 20), flow(0, 0, 100)], HOSTS)
    assert found.end_s == pytest.approx((2, 2, 2, 1))


def test_flows_of_no_bytes_and_latencies():
    flows = [flow(0, 1, 0), flow(0, 1, 10, 0, latency_s=3), flow(1, 2, 10, 0, 1, 1)]
    found = run_flows(flows, HOSTS)
    assert found.end_s == pytest.approx((0, 4, 5))
    assert run_flows([], HOSTS).makespan_s == 0


@pytest.mark.parametrize(
    ("flows", "message"),
    [
        ([flow(0, 1, 1, 0)], "flow 0 waits for flow 0, which is not before it"),
        ([flow(0, 1, 1), flow(0, 4, 1)], "flow 1 is of host 4; there are 4"),
    ],
)
def test_what_cannot_be_is_refused(flows, message):
    with pytest.raises(ProgramError, match=message):
        run_flows(flows, HOSTS)
