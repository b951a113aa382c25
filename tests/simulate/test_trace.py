"""The trace: what viewers demand of it."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict

import pytest

from meshwise.schedules.registry import make_schedule
from meshwise.simulate.links import Flow, HostLinks
from meshwise.simulate.pipeline import PricedPipeline
from meshwise.simulate.stages import StageBoundary, StageCost
from meshwise.simulate.trace import chrome_trace

HOST = HostLinks(nic_bytes_per_s=1e9, link_bytes_per_s=1e10)


@pytest.fixture(scope="module")
def timeline():
    def crossing(a, b):
        return (Flow(a, b, 7e6, 1e-5),)

    boundaries = [
        StageBoundary(source=a, destination=b, forward=crossing(a, b), backward=crossing(b, a))
        for a, b in ((0, 1), (1, 2), (0, 2))
    ]
    stages = [
        StageCost(
            forward_s=0.003,
            backward_s=0.007,
            apply_s=0.003,
            resident_bytes=100,
            held_bytes=10,
        )
    ] * 3
    schedule = make_schedule("eager-1f1b", num_stages=3, num_microbatches=6)
    return PricedPipeline(stages, boundaries, [HOST] * 3).simulate(schedule)


@pytest.fixture(scope="module")
def events(timeline):
    return json.loads(chrome_trace(timeline))["traceEvents"]


def test_each_mesh_is_a_process_with_named_threads(events):
    names = {(e["pid"], e["name"], e["args"]["name"]) for e in events if e["ph"] == "M"}
    for mesh in range(3):
        assert (mesh, "process_name", f"mesh {mesh}") in names
        for thread in ("compute", "send", "receive"):
            assert (mesh, "thread_name", thread) in names


def test_every_event_and_transfer_is_there_in_microseconds(timeline, events):
    slices = [e for e in events if e["ph"] == "X"]
    assert len(slices) == len(timeline.events) + 2 * len(timeline.transfers)
    assert all(e["dur"] >= 0 and e["ts"] >= 0 for e in slices)
    assert max(e["ts"] + e["dur"] for e in slices) == pytest.approx(1e6 * timeline.step_time_s)
    first = next(e for e in slices if e["name"] == "F0 stage 0")
    assert (first["pid"], first["ts"], first["dur"]) == (0, 0.0, 3000.0)
    assert first["args"] == {"stage": 0, "kind": "F", "microbatch": 0}
    sent = next(e for e in slices if e["name"] == "activation 0 stage 0 to 1")
    assert sent["ts"] == 3000.0
    assert sent["args"] == {"microbatch": 0, "bytes": 7e6, "from_stage": 0, "to_stage": 1}
    assert any(e["name"] == "gradient 5 stage 2 to 0" for e in slices)
    assert any(e["name"] == "apply stage 2" for e in slices)


def test_slices_of_one_thread_do_not_overlap(events):
    threads = defaultdict(list)
    for e in events:
        if e["ph"] == "X":
            start = round(1000 * e["ts"])
            threads[e["pid"], e["tid"]].append((start, start + round(1000 * e["dur"])))
    assert any(thread > 1 for _, thread in threads)
    for spans in threads.values():
        spans.sort()
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))


def test_memory_is_a_counter_of_each_mesh(timeline, events):
    for mesh, steps in enumerate(timeline.memory):
        counted = [
            (e["ts"], e["args"]["bytes"]) for e in events if e["ph"] == "C" and e["pid"] == mesh
        ]
        assert counted == [(round(s.time_s * 1e9) / 1000, s.num_bytes) for s in steps]
        assert counted[-1][1] == 100
