"""Hosts that do what others do are left out, and a step takes as long."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwise.schedules.registry import make_schedule
from meshwise.simulate.links import Flow, HostLinks
from meshwise.simulate.mirrored_hosts import without_mirrored
from meshwise.simulate.pipeline import PricedPipeline
from meshwise.simulate.stages import StageBoundary, StageCost

HOST = HostLinks(nic_bytes_per_s=10.0, link_bytes_per_s=40.0)


def columns(count, num_stages, num_bytes=10.0):
    """Stages of so many hosts each; the first sends to the first of the next, and so on."""

    def flows(k, n):
        return tuple(Flow(k * count + c, n * count + c, num_bytes) for c in range(count))

    return [
        StageBoundary(
            source=k, destination=k + 1, forward=flows(k, k + 1), backward=flows(k + 1, k)
        )
        for k in range(num_stages - 1)
    ]


def num_flows(boundaries):
    return sum(len(b.forward) + len(b.backward) for b in boundaries)


def test_one_column_of_equal_ones_is_left():
    every = columns(8, 4)
    kept = without_mirrored(every, [HOST] * 32)
    assert kept == [replace(b, forward=b.forward[:1], backward=b.backward[:1]) for b in every]


@pytest.mark.parametrize("other", [{"nic_bytes_per_s": 9.0}, {"link_bytes_per_s": 39.0}])
def test_a_column_with_other_links_stays(other):
    hosts = [HOST] * 32
    hosts[8 * 2 + 5] = replace(HOST, **other)
    kept = without_mirrored(columns(8, 4), hosts)
    assert [[f.source % 8 for f in b.forward] for b in kept] == [[0, 5]] * 3


@pytest.mark.parametrize(
    "extra",
    [
        StageBoundary(source=0, destination=2, forward=(Flow(1, 9, 1.0),)),
        StageBoundary(source=0, destination=1, forward=(Flow(1, 1, 1.0),)),
        StageBoundary(source=1, destination=2, backward=(Flow(9, 5, 1.0),)),
    ],
)
def test_a_column_with_another_flow_stays(extra):
    kept = without_mirrored([*columns(4, 3), extra], [HOST] * 12)
    assert kept[-1] == extra
    assert [[f.source % 4 for f in b.forward] for b in kept[:-1]] == [[0, 1]] * 2


def test_joined_columns_are_one_group():
    """In each half of the hosts the first one sends to four: the second half does the same."""
    forward = tuple(Flow(h, h + 8 + n, 4.0) for h in (0, 4) for n in range(4))
    joined = StageBoundary(source=0, destination=1, forward=forward)
    kept = without_mirrored([joined, *columns(8, 2)], [HOST] * 16)
    assert [flow.destination for flow in kept[0].forward] == [8, 9, 10, 11]
    assert [flow.source for flow in kept[1].forward] == [0, 1, 2, 3]


@given(
    count=st.integers(2, 5),
    sizes=st.lists(st.floats(0.1, 50.0), min_size=3, max_size=3),
    joins=st.lists(st.tuples(st.integers(0, 14), st.integers(0, 14)), max_size=4),
    latency_s=st.sampled_from([0.0, 0.5]),
    name=st.sampled_from(["1f1b", "eager-1f1b", "zero-bubble-h1"]),
    overlap=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_a_step_is_the_same_without_them(count, sizes, joins, latency_s, name, overlap):
    """Links inside of hosts that no flow uses tell columns apart, so that all are simulated."""
    num_hosts = 3 * count
    every = [
        replace(
            b,
            forward=tuple(f._replace(num_bytes=size, latency_s=latency_s) for f in b.forward),
            backward=tuple(f._replace(num_bytes=size / 2) for f in b.backward),
        )
        for b, size in zip(columns(count, 3), sizes, strict=False)
    ]
    more = tuple(
        Flow(a % num_hosts, b % num_hosts, sizes[2])
        for a, b in joins
        if a % num_hosts != b % num_hosts
    )
    every.append(StageBoundary(source=0, destination=2, forward=more))
    unlike = [replace(HOST, link_bytes_per_s=40.0 + h) for h in range(num_hosts)]
    assert without_mirrored(every, unlike) == every
    assert joins or num_flows(without_mirrored(every, [HOST] * num_hosts)) == 4
    schedule = make_schedule(name, num_stages=3, num_microbatches=4)
    stages = [
        StageCost(forward_s=1.0, backward_s=2.0, activation_gradient_s=1.0, weight_gradient_s=1.0)
    ] * 3
    alike = PricedPipeline(stages, every, [HOST] * num_hosts, overlap).simulate(schedule)
    whole = PricedPipeline(stages, every, unlike, overlap).simulate(schedule)
    assert alike == whole
