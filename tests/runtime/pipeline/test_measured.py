"""A measured step is a step, and its timeline is what its instructions did."""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwise as mw
from doubles.failing_programs import program_replaced, raising
from doubles.layered_steps import CLIPPED, gpt_step
from meshwise.errors import PlanError
from meshwise.report.html.page import plan_page
from meshwise.simulate.trace import chrome_trace
from oracle.problem import quick_jit

pytestmark = pytest.mark.usefixtures("quick_steps", "x64")


def test_a_measured_step_is_the_step_and_says_what_each_mesh_did() -> None:
    step, (state, batch) = gpt_step(CLIPPED, num_layers=1)
    expected = quick_jit(step)(*quick_jit(step)(state, batch)[:1], batch)
    cluster = mw.Cluster.virtual("2x p3.2xlarge")
    method = mw.Auto(stages=2, schedule="1f1b")
    staged = mw.parallelize(step, method=method, cluster=cluster, num_microbatches=4)
    state, *_ = staged(state, batch)
    assert "busy_s" not in staged.stats()
    # A failure in one thread stops the others and leaves the state.
    error = raising(jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED"))
    with (
        program_replaced(staged, "backward of layer 1", error),
        pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE_EXHAUSTED"),
    ):
        staged.measured(state, batch)
    assert not any(x.is_deleted() for x in jax.tree.leaves(state))

    (state, loss, _), timeline = staged.measured(state, batch)
    assert float(loss) == pytest.approx(float(expected[1]), rel=1e-9)
    for stage in (0, 1):
        done = [(e.kind, e.microbatch) for e in timeline.events if e.mesh == stage]
        assert {e.stage for e in timeline.events if e.mesh == stage} == {stage}
        # The instructions of 1F1B, in order.
        order = {
            0: ["F0", "F1", "B0", "F2", "B1", "F3", "B2", "B3"],
            1: ["F0", "B0", "F1", "B1", "F2", "B2", "F3", "B3"],
        }
        passes = [f"{kind}{b}" for kind, b in done if b >= 0]
        assert list(dict.fromkeys(passes)) == order[stage]
        assert done[-1] == ("apply", -1)
        times = [(e.start_s, e.end_s) for e in timeline.events if e.mesh == stage]
        ends = [0.0, *(end for _, end in times)]
        for (start, end), before in zip(times, ends, strict=False):
            assert before <= start <= end <= timeline.step_time_s
    sent = {(t.source_stage, t.destination_stage, t.microbatch) for t in timeline.transfers}
    assert {(0, 1, b) for b in range(4)} | {(1, 0, b) for b in range(4)} <= sent
    # A transfer arrives before the pass that reads it begins.
    for b in range(4):
        arrival = min(t.end_s for t in timeline.transfers if t[2:5] == (0, 1, b))
        (first, *_) = [e.start_s for e in timeline.events if e[:4] == (1, "F", 1, b)]
        assert arrival <= first
    stats = staged.stats()
    assert stats["measured_step_s"] == timeline.step_time_s
    assert sum(stats["busy_s"]) == pytest.approx(
        2 * timeline.step_time_s * (1 - stats["bubble_share"])
    )
    assert stats["bytes_between_meshes"] == sum(t.num_bytes for t in timeline.transfers)
    # What a device holds grows with micro-batches in flight, and has the state in it.
    assert all(peak >= steps[0].num_bytes > 0 for peak, steps in zip(
        timeline.peak_bytes, timeline.memory, strict=True))  # fmt: skip
    assert json.loads(chrome_trace(timeline))["traceEvents"]
    plan: Any = staged.plan(state, batch)
    page = plan_page(plan, timeline)
    assert page.index("Simulated step") < page.index("Measured step")
    assert "Measured step" not in plan_page(plan)


def test_one_mesh_has_no_timeline_of_meshes() -> None:
    step = mw.parallelize(
        lambda w, x: (w - jnp.sum(x), jnp.sum(w)),
        method=mw.DataParallel(),
        cluster=mw.Cluster.virtual("p3.8xlarge"),
    )
    with pytest.raises(PlanError, match="only a pipeline has a timeline of meshes"):
        step.measured(np.ones(3, np.float32), np.ones((4, 3), np.float32))
