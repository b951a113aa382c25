"""`meshwise explain`."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from click.testing import CliRunner

import meshwise as mw
from doubles.pipelines import pipeline
from meshwise.cli import main
from meshwise.cluster.cpu import cpu_cluster


@pytest.fixture(scope="module")
def plan() -> mw.Plan:
    step = mw.parallelize(
        lambda w, x: (w + x.T @ x, jnp.sum(x @ w)),
        method=mw.IntraOp((4,)),
        cluster=cpu_cluster(4),
    )
    shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((64, 64), (256, 64))]
    return step.priced(*shapes, rivals=2)


def test_a_file_as_text_and_as_json(plan: mw.Plan, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(plan.to_json())
    text = CliRunner().invoke(main, ["explain", str(path)])
    assert (text.exit_code, text.output) == (0, plan.explain())
    assert "What forcing another choice costs" in text.output
    piped = CliRunner().invoke(main, ["explain", "-"], input=plan.to_json())
    assert piped.output == text.output
    data = json.loads(CliRunner().invoke(main, ["explain", str(path), "--json"]).output)
    assert data["step_time_s"] == plan.step_time_s
    assert [a["layout"] for a in data["stages"][0]["arguments"]] == [
        str(layout) for layout in plan.decision.inputs
    ]
    assert len(data["rivals"]) == 2


def test_a_pipeline_as_text_and_as_json(tmp_path: Path) -> None:
    plan = pipeline()
    path = tmp_path / "plan.json"
    path.write_text(plan.to_json())
    text = CliRunner().invoke(main, ["explain", str(path)])
    assert (text.exit_code, text.output) == (0, plan.explain())
    data = json.loads(CliRunner().invoke(main, ["explain", str(path), "--json"]).output)
    assert data["gap"] == plan.gap
    assert [s["peak_bytes"] for s in data["stages"]] == [s.peak_bytes for s in plan.stages]


def test_a_plan_of_one_mesh_cannot_be_simulated(plan: mw.Plan) -> None:
    run = CliRunner().invoke(main, ["simulate", "-"], input=plan.to_json())
    assert run.exit_code == 1
    assert "a plan of one mesh has no pipeline to simulate" in run.output


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "No such file or directory"),
        ("{", "a plan must be JSON: "),
        ('{"format": "meshwise-plan", "version": 0}', "field 'version': this program reads"),
    ],
)
def test_what_is_no_plan(content: str | None, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    if content is not None:
        path.write_text(content)
    found = CliRunner().invoke(main, ["explain", str(path)])
    assert found.exit_code == 1
    assert found.output.startswith(f"Error: {path}: {reason}")
