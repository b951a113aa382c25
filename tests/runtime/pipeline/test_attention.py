"""Stages in which keys of attention go round, against one device."""

from __future__ import annotations

import pytest

import meshwise as mw
from meshwise.cluster.cpu import cpu_cluster
from meshwise.plan.plan import Plan
from oracle.attention_problems import by_hand, layers
from oracle.compare import assert_same_x64
from oracle.problem import fresh, reference, run

CLUSTER = cpu_cluster(8)


@pytest.mark.usefixtures("x64", "quick_steps")
def test_stages_with_keys_that_go_round_mean_the_same() -> None:
    """They are planned for less memory than stages need whose scores are there with all keys."""
    problem = layers(by_hand, rows=2, length=512)
    options = {"batch_argnums": (1,), "num_microbatches": 2, "cluster": CLUSTER}
    method = mw.Auto(stages=2, schedule="1f1b")
    free = mw.parallelize(problem.step, method=method, **options)
    plain = free.plan(problem.state, *problem.calls[0])
    assert not plain.joins_attention
    step = mw.parallelize(
        problem.step, method=method, memory_bytes=plain.peak_bytes // 2, **options
    )
    args = (problem.state, *problem.calls[0])
    plan = step.plan(*args)
    assert plan.joins_attention
    assert {c.kind for c in plan.collectives} >= {"permute"}
    assert_same_x64(reference(problem), run(step, problem))
    for found in step.fidelity(fresh(problem.state), *problem.calls[0]):
        assert found.planned_bytes == found.compiled_bytes
    again = mw.parallelize(
        problem.step, method=mw.Replay(Plan.from_json(plan.to_json())), **options
    )
    assert again.plan(*args).decisions == plan.decisions
