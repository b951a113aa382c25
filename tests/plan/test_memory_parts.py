"""What fills the memory of a pipeline's device: all of it, each byte once."""

from __future__ import annotations

import dataclasses

import pytest

import meshwise as mw
from doubles.golden_plans import golden_plan
from meshwise.plan.text.device_memory import plan_memory
from meshwise.plan.text.memory_parts import filled_memory
from meshwise.report.html.page import plan_page
from meshwise.report.html.seconds import mesh_seconds
from meshwise.simulate.plan import simulate_plan

PLAN = golden_plan("gpt-two-stages")


def test_every_byte_of_the_peak_is_said_once() -> None:
    filled = filled_memory(PLAN)
    assert filled is not None
    assert sum(part.num_bytes for part in filled.parts) == filled.peak_bytes == PLAN.peak_bytes
    fullest = max(plan_memory(PLAN).meshes, key=lambda mesh: mesh.peak_bytes)
    assert filled.of == f", {fullest.name}"
    (number,) = fullest.stages
    stage = PLAN.stages[number]
    by_role = {part.role: part for part in filled.parts}
    assert by_role["activations"].count == stage.in_flight
    assert by_role["activations"].num_bytes == stage.in_flight * stage.microbatch_bytes
    assert by_role["temporary"].num_bytes == stage.temporary_bytes
    assert stage.gradient_bytes is not None
    assert by_role["gradients"].num_bytes == stage.gradient_bytes
    assert "gradients and prepared" not in by_role
    # Adam holds for each parameter two moments and, while micro-batches run, one sum: here the
    # sums are whole, and of the parameters that can be halved each of two devices holds one half.
    (parameters,) = [part for part in filled.parts if part.where == "0/0"]
    assert parameters.num_bytes < stage.gradient_bytes <= 2 * parameters.num_bytes
    state = sum(part.count for part in filled.parts if part.role == "input")
    assert state == len(stage.arguments)


def test_older_files_do_not_tell_gradients_from_gathered_weights() -> None:
    stages = tuple(dataclasses.replace(stage, gradient_bytes=None) for stage in PLAN.stages)
    plan = dataclasses.replace(PLAN, stages=stages)
    assert "gradient_bytes" not in plan.to_json()
    assert mw.Plan.from_json(plan.to_json()) == plan
    filled, known = filled_memory(plan), filled_memory(PLAN)
    assert filled is not None
    assert known is not None
    (both,) = [part for part in filled.parts if part.role == "gradients and prepared"]
    apart = [part for part in known.parts if part.role in ("gradients", "prepared")]
    assert both.num_bytes == sum(part.num_bytes for part in apart)
    assert "gradient sums; weights gathered or cast once a step" in plan.explain()


def test_text_and_page_say_it_with_equal_words() -> None:
    title = "What fills the memory"
    assert f"{title} of a device, stage" in PLAN.explain()
    page = plan_page(PLAN)
    assert f"<h2>{title}, stage" in page
    for word in ("micro-batches in flight", "not yet read", "temporary"):
        assert word in page
    assert "passes later" not in PLAN.explain()


def test_other_operators_of_stages_are_told_by_their_source_lines() -> None:
    for mesh, stage in zip(mesh_seconds(PLAN, simulate_plan(PLAN)), PLAN.stages, strict=True):
        told_s = sum(item.seconds for item in stage.others)
        # Of fused operators each is told with all bytes that it reads and writes.
        assert 0.5 * mesh.others_s < told_s <= 1.05 * mesh.others_s
        assert mesh.others[0] == max(stage.others, key=lambda item: item.seconds)
    text = " ".join(PLAN.explain().split())
    assert PLAN.stages[0].others[0].where.partition(" (")[0] in text


@pytest.mark.parametrize("name", ["product-priced", "gpt-two-stages"])
def test_all_else_is_told_last(name: str) -> None:
    rows = golden_plan(name).explain().partition("Seconds of a step")[2].partition("\n\n")[0]
    assert rows.splitlines()[-1].startswith("all else ")
