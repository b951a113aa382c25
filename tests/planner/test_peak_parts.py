"""What fills the memory at the peak, in the plan and on its page."""

from __future__ import annotations

import jax

import meshwise as mw
from doubles.perceptron import perceptron
from meshwise.memory.peak import Buffer, Peak
from meshwise.planner.peak_parts import peak_parts


def _buffer(role: str, where: str, num_bytes: int) -> Buffer:
    return Buffer(path=(), tensor=0, start=0, num_bytes=num_bytes, role=role, where=where)


def test_arguments_are_summed_by_their_first_key_and_values_by_line() -> None:
    buffers = (
        _buffer("input", "0/params/a", 40),
        _buffer("input", "0/params/b", 30),
        _buffer("input", "0/moments/a", 60),
        _buffer("value", "step.py:3", 20),
        _buffer("copy", "step.py:3", 5),
        _buffer("value", "step.py:3", 20),
        *(_buffer("value", f"step.py:{k}", 1) for k in range(10, 20)),
    )
    parts = peak_parts(Peak(num_bytes=200, buffers=buffers))
    assert [(p.role, p.where, p.count, p.num_bytes) for p in parts[:4]] == [
        ("input", "0/params", 2, 70),
        ("input", "0/moments", 1, 60),
        ("value", "step.py:3", 2, 40),
        ("copy", "step.py:3", 1, 5),
    ]
    assert (parts[-1].role, parts[-1].count) == ("rest", 0)
    assert sum(part.num_bytes for part in parts) == 200
    assert len(parts) == 9


def test_a_plan_says_it_and_its_page_shows_it() -> None:
    step, state, batch = perceptron((64, 128, 64), 32)
    cluster = mw.Cluster.virtual("1x p3.8xlarge")
    parallel = mw.parallelize(step, cluster=cluster)
    plan = parallel.plan(state, batch)
    assert sum(part.num_bytes for part in plan.peak_parts) == plan.peak_bytes
    held = sum(p.num_bytes for p in plan.peak_parts if p.role == "input")
    state_bytes = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state))
    assert held >= state_bytes / cluster.num_devices
    assert mw.Plan.from_json(plan.to_json()) == plan
    page = parallel.page(state, batch)
    assert "What fills the memory" in page
    assert "<td>arguments</td>" in page
