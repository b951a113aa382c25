"""A run that goes on takes the plan with which it began."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest

import meshwise as mw
from meshwise.report.plan_file import plan_from_file
from meshwise.train.corpus import load_corpus
from meshwise.train.kept_plan import FILE, SETTINGS_FILE, keep_plan, kept_plan
from meshwise.train.options import TrainOptions
from meshwise.train.step import state_creator, train_step_of


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> TrainOptions:
    folder = tmp_path_factory.mktemp("kept")
    (folder / "text").write_text("a dull text\n" * 500)
    return TrainOptions(
        out=folder, text=folder / "text", model="tiny", seq=16, batch=8, method="data"
    )


@pytest.fixture(scope="module")
def plan(options: TrainOptions) -> mw.Plan:
    corpus = load_corpus(options.text, seq=options.seq)
    batch = corpus.batch_at(0, batch=options.batch, seq=options.seq, seed=0)
    step = mw.parallelize(train_step_of(options), method=mw.DataParallel())
    return step.plan(jax.eval_shape(state_creator(options), jax.random.key(0)), batch)


def test_a_plan_is_kept_for_the_same_settings_only(options: TrainOptions, plan: mw.Plan) -> None:
    assert kept_plan(options) is None
    keep_plan(options, plan)
    assert kept_plan(options) == plan
    assert plan_from_file(options.out / FILE) == plan
    assert kept_plan(replace(options, steps=options.steps + 1)) == plan
    for other in (
        {"fresh": True},
        {"batch": 16},
        {"method": "zero3"},
        {"memory_bytes": 2**30},
        {"microbatches": 2},
        {"dump_ilp": Path("ilp")},
        {"cluster": mw.Cluster.virtual("1x dgx-h100")},
    ):
        changed: Any = replace(options, **other)
        assert kept_plan(changed) is None, other


@pytest.mark.parametrize("file", [FILE, SETTINGS_FILE])
@pytest.mark.parametrize("change", ["", "[]", "{", '{"of": 1}', '{"plan": {}}', "[" * 100_000])
def test_a_file_that_says_no_plan_is_passed_over(
    options: TrainOptions, plan: mw.Plan, file: str, change: str
) -> None:
    keep_plan(options, plan)
    (options.out / file).write_text(change)
    assert kept_plan(options) is None


def test_a_plan_of_other_devices_is_passed_over(options: TrainOptions, plan: mw.Plan) -> None:
    keep_plan(options, plan)
    told = json.loads((options.out / SETTINGS_FILE).read_text())
    told["devices"].pop()
    (options.out / SETTINGS_FILE).write_text(json.dumps(told))
    assert kept_plan(options) is None


def test_a_plan_that_was_changed_is_not_taken_for_the_one_of_the_run(
    options: TrainOptions, plan: mw.Plan
) -> None:
    keep_plan(options, plan)
    (options.out / FILE).write_text(replace(plan, model="another").to_json())
    assert kept_plan(options) is None


def test_a_plan_that_a_run_was_given_is_not_one_that_it_searched(
    options: TrainOptions, plan: mw.Plan
) -> None:
    given = replace(options, plan=plan)
    keep_plan(given, plan)
    assert kept_plan(given) == plan
    assert kept_plan(options) is None
