"""Pipelines with other ways to send: a small one by hand."""

from __future__ import annotations

import dataclasses

import pytest
from evaluation.alpacomm.end_to_end import (
    ALL,
    ALL_GATHER,
    BOUND,
    OVERLAPPED,
    PLAIN,
    WAYS,
    run_way,
)
from evaluation.alpacomm.end_to_end_page import end_to_end_page, simulated_runs
from evaluation.alpacomm.settings import SETTINGS, planned_stages
from evaluation.alpacomm.stages import PlannedStages, Stage, in_two_dims

from meshwise.cluster.spec import ClusterSpec
from meshwise.graph.layout import parse_layout
from meshwise.simulate.chunks import Chunk

NIC = ClusterSpec.virtual("2x p3.8xlarge").host_at(0).nics_bytes_per_s
LATENCY = ClusterSpec.virtual("2x p3.8xlarge").host_at(0).nic.latency_s
CHUNK = Chunk(
    forward_s=1.0,
    backward_s=2.0,
    once_s=0.0,
    resident_bytes=0.0,
    microbatch_bytes=1e9,
    temporary_bytes=0.0,
)
# A transfer of one copy takes half a second.
SENT = round(NIC / 2)


def planned(layout="S0 R", count=4):
    at = parse_layout(layout)
    stages = [
        Stage(
            chunk=CHUNK,
            first_host=k,
            submesh=(1, 4),
            mesh=(2, 2),
            enters=at,
            leaves=at,
            send_bytes=SENT if not k else 0,
        )
        for k in range(2)
    ]
    return PlannedStages(
        setting="toy",
        model="gpt-tiny",
        cluster="2x p3.8xlarge",
        plan="by hand",
        num_microbatches=count,
        rows=8,
        stages=tuple(stages),
        created="2026-11-22",
    )


def sent(way, layout):
    events = run_way(planned(layout), WAYS[way]).transfers
    assert len({event.num_bytes for event in events}) == 1
    return events[0].num_bytes


@pytest.mark.parametrize(
    ("layout", "copies"), [("S01 R", 1), ("S0 R", 2), ("R R", 4), ("S0 S1", 1)]
)
def test_what_is_sent(layout, copies):
    assert sent("send/recv", layout) == pytest.approx(copies * SENT, rel=1e-6)
    assert sent(ALL_GATHER, layout) == pytest.approx(SENT, rel=1e-6)
    assert sent(PLAIN, layout) == pytest.approx(SENT, rel=1e-6)
    assert sent(BOUND, layout) == 1


def test_steps_of_two_equal_stages():
    count, half = 4, 0.5 + LATENCY
    # 1F1B that stops for transfers: a cotangent passes beside the activation that goes next.
    step = {name: run_way(planned(count=count), way).step_time_s for name, way in WAYS.items()}
    assert step[BOUND] == pytest.approx(count * 3 + 3, abs=0.01)
    assert step[PLAIN] == pytest.approx((count + 1) * 3 + (count + 2) * half, abs=0.01)
    assert step["send/recv"] == pytest.approx((count + 1) * 3 + (count + 2) * 2 * half, abs=0.01)
    assert step[ALL] <= step[OVERLAPPED] < step[PLAIN] <= step[ALL_GATHER] < step["send/recv"]
    # Hidden but for the first one there and the last one back.
    assert step[ALL] == pytest.approx(step[BOUND] + 2 * half, abs=0.01)


def test_files_read_back_and_pages_show_them():
    given = planned()
    read = PlannedStages.from_json(given.to_json())
    assert read == given
    runs = simulated_runs([given])
    page = end_to_end_page([given], runs)
    assert "| toy | 2x p3.8xlarge | 4 x 8 | 2x2, 2x2 | S0 R to S0 R | 477 MiB | by hand |" in page
    assert f"{runs['toy', ALL_GATHER].step_time_s / runs['toy', ALL].step_time_s:.2f}" in page
    for text in ("{}", "[]", "x", given.to_json().replace('"rows"', '"columns"')):
        with pytest.raises(ValueError, match=r"not a planned pipeline|not of format|Expecting"):
            PlannedStages.from_json(text)


def test_layouts_in_two_dims():
    assert in_two_dims(parse_layout("S1 R S0")) == parse_layout("S1 S0")
    assert in_two_dims(parse_layout("-")) == parse_layout("R R")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt-1.3b", "gpt-1.3b-tp"])
def test_settings_are_planned(name):
    setting = dataclasses.replace(SETTINGS[name], model="gpt-tiny", batch=32, num_microbatches=4)
    found = planned_stages(setting)
    assert [s.first_host for s in found.stages] == [0, 1]
    assert found.rows == 8
    assert found.stages[0].send_bytes > 0
    assert all(s.chunk.forward_s > 0 for s in found.stages)
    if name.endswith("tp"):
        assert found.stages[1].enters == parse_layout("S0 R")
    assert run_way(found, WAYS[ALL]).step_time_s > 0
