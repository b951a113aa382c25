"""Flows share cards as max-min fairness says, and nothing else."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwise.errors import ClusterError
from meshwise.simulate.kernels.fair_shares import fair_rates
from meshwise.simulate.links import Flow, HostLinks
from simulate.by_name import Action, Transfer, outcome

HOST = HostLinks(nic_bytes_per_s=10.0, link_bytes_per_s=40.0)


def ends(*flows, hosts=4, after=None):
    """When each flow arrives if it is a message of its own, made at the second in `after`."""
    delays = after or [0.0] * len(flows)
    meshes = [[Action(delay, (), (i,))] for i, delay in enumerate(delays)]
    transfers = [Transfer(i, i, (flow,)) for i, flow in enumerate(flows)]
    found = outcome(meshes, transfers, [HOST] * hosts)
    return tuple(end for _, end in found.transfer_times)


def test_a_flow_alone_has_the_card():
    assert ends(Flow(0, 1, 50.0)) == (5.0,)


def test_latency_comes_first_and_occupies_nothing():
    assert ends(Flow(0, 1, 50.0, 2.0)) == (7.0,)
    assert ends(Flow(0, 1, 0.0, 2.0)) == (2.0,)
    assert ends(Flow(0, 1, 20.0, 2.0), Flow(0, 2, 20.0)) == (4.0, 2.0)


def test_opposite_flows_do_not_slow_each_other():
    assert ends(Flow(0, 1, 50.0), Flow(1, 0, 50.0)) == (5.0, 5.0)
    # Nor do flows through a host, in by one and out by the other.
    assert ends(Flow(0, 1, 50.0), Flow(1, 2, 50.0)) == (5.0, 5.0)


def test_two_flows_out_of_one_card_or_into_one_take_twice_as_long():
    assert ends(Flow(0, 1, 50.0), Flow(0, 2, 50.0)) == (10.0, 10.0)
    assert ends(Flow(0, 2, 50.0), Flow(1, 2, 50.0)) == (10.0, 10.0)


def test_a_flow_has_the_card_for_itself_again_when_the_other_ends():
    # 2 s at 5 B/s each, then 10 B/s.
    assert ends(Flow(0, 1, 10.0), Flow(0, 2, 30.0)) == (2.0, 4.0)
    # The second starts at 1, when the first has 20 B left: both have 5 B/s until 5.
    assert ends(Flow(0, 1, 30.0), Flow(0, 2, 30.0), after=[0.0, 1.0]) == (5.0, 6.0)


def test_what_one_flow_cannot_use_goes_to_the_others():
    # Three into host 3 have 10/3 each; the second out of host 0 takes the other 20/3.
    slow = 30.0
    assert ends(
        Flow(0, 3, slow), Flow(1, 3, slow), Flow(2, 3, slow), Flow(0, 1, 60.0)
    ) == pytest.approx((9.0, 9.0, 9.0, 9.0))


def test_a_flow_keeps_to_its_own_limit():
    assert ends(Flow(0, 1, 10.0, 0.0, 2.0)) == (5.0,)
    assert ends(Flow(0, 1, 10.0, 0.0, 2.0), Flow(0, 2, 40.0)) == (5.0, 5.0)


def test_a_flow_within_a_host_takes_the_links_inside():
    assert ends(Flow(0, 0, 40.0), Flow(0, 1, 50.0)) == (1.0, 5.0)
    assert ends(Flow(0, 0, 40.0), Flow(0, 0, 40.0)) == (2.0, 2.0)


def test_a_message_arrives_with_its_last_flow():
    flows = (Flow(0, 1, 10.0), Flow(0, 2, 0.0), Flow(3, 2, 30.0, 1.0))
    stream = [Action(0.0, (), (0,)), Action(1.0, (0,))]
    found = outcome([stream], [Transfer(0, 0, flows)], [HOST] * 4)
    assert found.transfer_times == [(0.0, 4.0)]
    assert found.starts == [[0.0, 4.0]]


@pytest.mark.parametrize("rate", [0.0, -1.0, math.inf, math.nan])
def test_an_impossible_bandwidth_is_refused(rate):
    hosts = [HOST, HostLinks(nic_bytes_per_s=rate, link_bytes_per_s=1.0)]
    with pytest.raises(ClusterError, match="host 1 has a bandwidth of"):
        outcome([[]], [], hosts)


PATHS = st.lists(st.tuples(st.integers(0, 4), st.integers(5, 9)), min_size=1, max_size=12)


@settings(deadline=None)
@given(
    paths=PATHS,
    capacities=st.lists(st.floats(0.5, 100.0), min_size=10, max_size=10),
    data=st.data(),
)
def test_rates_are_max_min_fair(paths, capacities, data):
    """The definition: each flow is at its limit, or at a full port where nobody has more."""
    count = len(paths)
    limits = data.draw(
        st.lists(st.one_of(st.just(math.inf), st.floats(0.1, 50.0)), min_size=count, max_size=count)
    )
    rates = fair_rates(np.array(paths), np.array(limits), np.array(capacities))
    at_port = [[f for f in range(count) if port in paths[f]] for port in range(10)]
    for port, flows in enumerate(at_port):
        assert sum(rates[f] for f in flows) <= capacities[port] * (1 + 1e-9)
    for f in range(count):
        assert 0 < rates[f] <= limits[f]
        held_back = rates[f] == limits[f] or any(
            sum(rates[g] for g in at_port[port]) >= capacities[port] * (1 - 1e-9)
            and rates[f] >= max(rates[g] for g in at_port[port]) * (1 - 1e-9)
            for port in paths[f]
        )
        assert held_back


def some_flows(sources):
    return st.lists(
        st.tuples(
            sources, st.integers(0, 3), st.floats(1.0, 100.0), st.sampled_from([0.0, 0.5])
        ).map(lambda fields: Flow(*fields)),
        min_size=1,
        max_size=10,
    )


def ports_of(flow):
    if flow.source == flow.destination:
        return [("in", flow.source)]
    return [("send", flow.source), ("receive", flow.destination)]


@settings(deadline=None)
@given(flows=some_flows(st.integers(0, 3)), data=st.data())
def test_no_card_carries_more_than_it_can(flows, data):
    after = [data.draw(st.sampled_from([0.0, 0.0, 0.25, 1.0])) for _ in flows]
    arrivals = ends(*flows, after=after)
    begins = [start + flow.latency_s for start, flow in zip(after, flows, strict=True)]
    capacity = {"send": 10.0, "receive": 10.0, "in": 40.0}
    for port in {port for flow in flows for port in ports_of(flow)}:
        mine = [i for i, flow in enumerate(flows) if port in ports_of(flow)]
        first, last = min(begins[i] for i in mine), max(arrivals[i] for i in mine)
        carried = sum(flows[i].num_bytes for i in mine)
        assert carried <= capacity[port[0]] * (last - first) * (1 + 1e-6)
    for i, flow in enumerate(flows):
        own = capacity[ports_of(flow)[0][0]]
        assert arrivals[i] - begins[i] >= flow.num_bytes / own * (1 - 1e-6)


@settings(deadline=None)
@given(flows=some_flows(st.just(0)), data=st.data())
def test_a_card_never_rests_while_something_is_to_be_sent(flows, data):
    # All leave host 0 and no receiver is slower than its card, so that card decides alone: it is
    # done when one flow after the other would be.
    flows = [flow._replace(destination=flow.destination or 1) for flow in flows]
    after = [data.draw(st.floats(0.0, 30.0)) for _ in flows]
    arrivals = ends(*flows, after=after)
    done = 0.0
    for begin, num_bytes in sorted(
        (start + flow.latency_s, flow.num_bytes) for start, flow in zip(after, flows, strict=True)
    ):
        done = max(done, begin) + num_bytes / 10.0
    assert max(arrivals) == pytest.approx(done, rel=1e-6)
