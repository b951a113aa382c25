"""`meshwise train` as a user calls it, over a double of the parallelised step."""

from __future__ import annotations

import importlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from click.testing import CliRunner, Result
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from rich.console import Console
from rich.table import Table

from doubles.jit_step import PLAN, TIMELINE, JitStep
from meshwise.cli import COMMANDS, main
from meshwise.cli.train_tables import layout_table
from meshwise.cli.train_view import TrainView
from meshwise.cluster.spec import ClusterSpec
from meshwise.errors import InfeasibleError, PlanError, PlanWarning
from meshwise.graph.layout import Layout
from meshwise.plan.text.columns import layout_spec
from meshwise.simulate.trace import chrome_trace
from meshwise.train.options import TrainOptions
from meshwise.train.sample import Sample

# The package attribute of that name is the command, not its module.
train_module = importlib.import_module("meshwise.cli.train")

pytestmark = pytest.mark.usefixtures("quick_compile", "one_layer")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    text = tmp_path / "text.txt"
    text.write_text("the same line again and again\n" * 100)

    def call(*args: str, step: Any = JitStep) -> Result:
        monkeypatch.setattr(train_module, "step_builder", lambda options: step)
        common = ["train", "--text", str(text), "--out", str(tmp_path / "run"), "--model", "tiny"]
        small = ["--seq", "16", "--batch", "8", "--steps", "4", "--eval-every", "2"]
        return CliRunner().invoke(main, [*common, *small, *args])

    return call


def test_a_run_shows_plan_losses_and_summary(run: Any) -> None:
    result = run()
    assert result.exit_code == 0, result.output
    parts = (
        "state on one device", "plan, found in", "Pretended()", "held-out loss", "saved ",
        "done after 4 steps", "predicted against measured", "checkpoint: ",
    )  # fmt: skip
    for part in parts:
        assert part in result.output


def test_a_measured_step_is_written_as_a_trace(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "step.json"
    result = run("--stages", "1", "--trace", str(path))
    assert result.exit_code == 0, result.output
    assert "step      3  measured mesh by mesh: 500 ms" in result.output
    assert path.read_text() == chrome_trace(TIMELINE)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert [stage["actual_busy_s"] for stage in summary["stages"]] == [0.375]
    assert not summary["is_median_measured"]
    refused = run("--stages", "1", "--trace", str(tmp_path / "none" / "step.json"))
    assert refused.exit_code == 1
    assert "no folder" in refused.output


def test_the_plan_of_one_mesh_has_a_page_without_a_measured_step(run: Any, tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    result = run("--html", str(page))
    assert result.exit_code == 0, result.output
    assert "<h1>Training step</h1>" in page.read_text()
    shown = " ".join(result.output.split())
    assert "wrote " in shown
    assert "no step was measured" not in shown


def test_a_run_that_ends_shows_a_text_of_the_model_one_that_stops_does_not(run: Any) -> None:
    class Interrupted(JitStep):
        def __call__(self, state: Any, batch: Any) -> Any:
            os.kill(os.getpid(), signal.SIGINT)
            return super().__call__(state, batch)

    assert "sample" not in run(step=Interrupted).output
    shown = run().output
    _, sample = shown.split("sample: held-out text")
    # The prompt is 5 of the 16 bytes.
    assert any(part in sample for part in ("same", "line", "agai", "ain a", "nd ag", " the "))
    assert "the plan as a page with pictures: --html" in shown


def test_what_a_terminal_would_obey_is_not_written(capsys: pytest.CaptureFixture[str]) -> None:
    with TrainView(use_stderr=False, dump_plan=False) as view:
        view.on_sample(Sample("a\x1b[2Jb\n", "c\rd"))
    shown = capsys.readouterr().out.splitlines()
    assert shown[1:3] == ["a\N{MIDDLE DOT}[2Jb", "c\N{MIDDLE DOT}d"]


def test_a_trace_that_cannot_be_written_does_not_cost_the_run(run: Any, tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()

    class Vanishing(JitStep):
        def measured(self, state: Any, batch: Any) -> Any:
            shutil.rmtree(folder)
            return super().measured(state, batch)

    files = ("--trace", str(folder / "step.json"), "--html", str(folder / "step.html"))
    result = run("--stages", "1", *files, step=Vanishing)
    assert result.exit_code == 1
    shown = " ".join(result.output.split())
    assert "done after 4 steps" in shown
    assert "could not write" in shown
    assert "step.html" in shown.partition("could not write")[2]
    assert "the run itself is saved" in shown
    assert (tmp_path / "run" / "checkpoints" / "4").is_dir()
    assert (tmp_path / "run" / "summary.json").is_file()


def test_the_time_of_a_run_whose_only_step_was_measured_says_so(run: Any, tmp_path: Path) -> None:
    result = run("--stages", "1", "--trace", str(tmp_path / "step.json"), "--steps", "1")
    assert result.exit_code == 0, result.output
    assert "time, clocked mesh by mesh" in result.output
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["is_median_measured"]
    assert summary["median_step_s"] > 0


@pytest.fixture
def options_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[TrainOptions]:
    """What the planner is asked, by runs of `small_run` with `tmp_path` as their folder."""
    seen: list[TrainOptions] = []

    def builder(options: TrainOptions) -> Any:
        seen.append(options)
        return JitStep

    monkeypatch.setattr(train_module, "step_builder", builder)
    (tmp_path / "text.txt").write_text("the same line again and again\n" * 100)
    return seen


def small_run(folder: Path) -> list[str]:
    size = ["--model", "tiny", "--seq", "16", "--batch", "8", "--steps", "1"]
    return ["train", *size, "--text", str(folder / "text.txt"), "--out", str(folder / "run")]


def test_the_folder_for_the_planners_problems_reaches_the_planner(
    tmp_path: Path, options_seen: list[TrainOptions]
) -> None:
    args = [*small_run(tmp_path), "--dump-ilp", str(tmp_path)]
    assert CliRunner().invoke(main, args).exit_code == 0
    assert options_seen[0].dump_ilp == tmp_path


def test_a_cluster_by_name_or_file_reaches_the_planner(
    tmp_path: Path, options_seen: list[TrainOptions]
) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text('num_hosts = 1\nhost = "dgx-a100"\n')
    args = [*small_run(tmp_path), "--fresh", "--cluster"]
    assert CliRunner().invoke(main, [*args, str(path)]).exit_code == 0
    assert CliRunner().invoke(main, [*args, "dgx-a100"]).exit_code == 0
    assert [options.cluster for options in options_seen] == [ClusterSpec.virtual("dgx-a100")] * 2
    refused = CliRunner().invoke(main, [*args, "dgx-a99"])
    assert refused.exit_code == 2
    assert "no host 'dgx-a99' in the catalog" in refused.stderr


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(train_module, "step_builder", lambda options: JitStep)
    monkeypatch.chdir(tmp_path)

    def call(*args: str) -> Result:
        step = ["--step", "doubles.own_steps:made"]
        return CliRunner().invoke(main, ["train", *step, "--steps", "2", *args])

    return call


def test_a_step_of_ones_own_is_shown_without_what_is_of_text(own: Any, tmp_path: Path) -> None:
    result = own("--html", "plan.html")
    assert result.exit_code == 0, result.output
    shown = " ".join(result.output.split())
    parts = (
        "doubles.own_steps:made a state of 3 KiB in 13 arrays", "16 rows a step",
        "state on one device", "opt/0/mu/0", "done after 2 steps", "rows/s",
        "checkpoint: runs/own_steps/checkpoints/2",
    )  # fmt: skip
    for part in parts:
        assert part in shown
    for part in ("held-out", "tokens", "sample", "moments", "parameter"):
        assert part not in shown
    assert (tmp_path / "plan.html").is_file()
    assert "resumed from the checkpoint of step 2" in own("--steps", "3").output


def test_a_step_of_ones_own_that_cannot_be_trained_is_told_in_one_line(own: Any) -> None:
    result = own("--step", "doubles.own_steps:two")
    assert result.exit_code == 1
    assert "Error: --step doubles.own_steps:two: it must return (step, state," in result.output
    assert "Traceback" not in result.output
    assert "planning" not in result.output


@pytest.mark.parametrize(
    ("args", "names"),
    [
        (["--model", "tiny"], "--model is"),
        (["--text", "."], "--text is"),
        (["--lr", "0.1", "--seq", "8", "--batch", "8"], "--seq, --batch, --lr are"),
        (["--dropout", "0.1", "--eval-every", "5"], "--dropout, --eval-every are"),
    ],
)
def test_options_of_models_do_not_go_with_a_step_of_ones_own(
    own: Any, args: list[str], names: str
) -> None:
    result = own(*args)
    assert result.exit_code == 2
    told = f"--step brings its own model, data and optimizer: {names} for models by name; leave"
    assert told in " ".join(result.output.split())


def test_json_is_alone_on_standard_output(run: Any) -> None:
    result = run("--json")
    summary = json.loads(result.stdout)
    assert summary["steps_done"] == 4
    assert summary["is_complete"] is True
    assert "held-out loss" in result.stderr


def test_a_run_with_all_its_steps_says_how_to_go_on(run: Any, tmp_path: Path) -> None:
    shown = " ".join(run("--memory", "7MiB").output.split())
    assert "(means of the first 2 steps and the last 2)" in shown
    assert "1000 B of 7 MiB a device" in shown
    page = tmp_path / "plan.html"
    again = run("--html", str(page), "--memory", "7MiB", "--json")
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout)["steps_done"] == 4
    for part in ("nothing to do: the run has all its steps, 4 (loss ", "--steps 8 goes on"):
        assert part in again.stderr
    assert "planning" not in again.stderr
    assert "<h1>Training step</h1>" in page.read_text()
    other = run("--html", str(page), "--method", "data")
    assert other.exit_code == 1
    assert "no plan of these settings is kept for" in other.output
    assert "done after 5 steps" in run("--steps", "5").output


def test_a_second_run_resumes_and_fresh_starts_anew(run: Any) -> None:
    run()
    resumed = run("--steps", "6")
    assert "resumed from the checkpoint of step 4" in resumed.output
    assert "done after 6 steps" in resumed.output
    fresh = run("--fresh")
    assert "resumed" not in fresh.output
    assert "done after 4 steps" in fresh.output


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_taken(
    run: Any, tmp_path: Path
) -> None:
    run("--save-every", "2", "--keep", "3")
    folder = tmp_path / "run" / "checkpoints"
    assert {path.name for path in folder.iterdir()} == {"2", "4"}
    (folder / "4" / "state" / "_METADATA").write_text("{}")
    resumed = run("--save-every", "2", "--keep", "1")
    assert resumed.exit_code == 0, resumed.output
    shown = " ".join(resumed.output.split())
    assert "warning: the checkpoint of step 4 is damaged and was not taken: " in shown
    assert f"it is kept as {folder / '4.damaged'}" in shown
    assert "resumed from the checkpoint of step 2" in shown
    assert {path.name for path in folder.iterdir()} == {"4", "4.damaged"}
    shutil.rmtree(folder / "4" / "state")
    none = run()
    assert none.exit_code == 1
    assert "Error: no checkpoint in" in none.output
    assert "--fresh" in none.output
    assert "Traceback" not in none.output
    assert run("--fresh").exit_code == 0
    assert {path.name for path in folder.iterdir()} == {"4"}


def test_a_folder_that_takes_no_files_is_named_before_the_plan(run: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = run("--out", str(tmp_path / "file" / "run"))
    assert result.exit_code == 1
    assert "Error: cannot write checkpoints to" in result.output
    assert "Traceback" not in result.output
    assert "GPT" not in result.output


def test_a_last_state_that_is_not_saved_is_told_after_the_summary(run: Any, tmp_path: Path) -> None:
    folder = tmp_path / "run" / "checkpoints"

    class Breaking(JitStep):
        def __call__(self, state: Any, batch: Any) -> Any:
            if int(state.step) == 3:
                folder.rmdir()
                folder.write_text("")
            return super().__call__(state, batch)

    result = run(step=Breaking)
    assert result.exit_code == 1
    shown = " ".join(result.output.split())
    assert "warning: the state of step 4 is not saved in" in shown
    assert "done after 4 steps" in shown
    assert "File exists; no checkpoint is there" in shown.partition("Error: ")[2]


def test_a_fresh_run_without_a_plan_leaves_the_checkpoints(run: Any) -> None:
    class Refusing(JitStep):
        def plan(self, state: Any, batch: Any) -> Any:
            raise PlanError("no such plan")

    run()
    refused = run("--fresh", step=Refusing)
    assert refused.exit_code == 1
    assert "no such plan" in refused.output
    assert "resumed from the checkpoint of step 4" in run("--steps", "6").output


def test_a_run_that_is_done_says_that_no_step_was_measured(run: Any, tmp_path: Path) -> None:
    run()
    path = tmp_path / "step.json"
    result = run("--stages", "2", "--trace", str(path))
    assert not path.exists()
    assert "no step was measured" in " ".join(result.output.split())


def test_ctrl_c_saves_and_the_next_call_goes_on(run: Any) -> None:
    class Interrupted(JitStep):
        def __call__(self, state: Any, batch: Any) -> Any:
            if int(state.step) == 1:
                os.kill(os.getpid(), signal.SIGINT)
            return super().__call__(state, batch)

    before = signal.getsignal(signal.SIGINT)
    result = run(step=Interrupted)
    assert result.exit_code == 130
    assert "stopping after this step" in result.output
    assert "stopped after 2 steps" in result.output
    assert signal.getsignal(signal.SIGINT) is before
    assert "resumed from the checkpoint of step 2" in run().output


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75)])
def test_a_signal_while_planning_ends_at_once(run: Any, number: int, code: int) -> None:
    class Interrupted(JitStep):
        def plan(self, state: Any, batch: Any) -> Any:
            os.kill(os.getpid(), number)
            return super().plan(state, batch)

    result = run(step=Interrupted)
    assert result.exit_code == code
    assert "stopped; what was saved stays" in result.output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_of_a_scheduler_saves_and_asks_for_another_start(run: Any, number: int) -> None:
    class Interrupted(JitStep):
        def __call__(self, state: Any, batch: Any) -> Any:
            if int(state.step) == 1:
                os.kill(os.getpid(), number)
            return super().__call__(state, batch)

    assert run(step=Interrupted).exit_code == 75
    assert "resumed from the checkpoint of step 2" in run().output


def test_the_plan_can_be_dumped(run: Any) -> None:
    assert PLAN.to_json() in run("--dump-plan").output
    assert PLAN.to_json() not in run().output


def test_a_failure_is_told_in_one_line(run: Any) -> None:
    run()
    result = run("--seed", "3")
    assert result.exit_code == 1
    assert "Error: the checkpoint of step 4 in " in result.output
    assert "seed: 0 there, 3 here" in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--mesh", "2x0"], "'2x0' is not a mesh shape; write it as 8, 2x4 or 2x2x2"),
        (["--method", "magic"], "'magic' is not a method; there are auto, intra, data,"),
        (["--method", "megatron:8"], "'megatron:8' is not a method"),
        (["--memory", "12 parsecs"], "'12 parsecs' is not a size; write it as 512MiB or 16GB"),
        (["--microbatches", "0"], "'0' is neither a positive number nor auto"),
        (["--stages", "0"], "'0' is neither a positive number nor auto"),
        (["--schedule", "gpipe"], "--schedule is of a pipeline; give --stages, too"),
        (
            ["--stages", "2", "--method", "zero3"],
            "goes with --method auto, not with zero3",
        ),
        (["--trace", "x.json"], "--trace is of a pipeline; give --stages, too"),
        (["--model", "llama-tiny", "--dropout", "0.1"], "--dropout: llama-tiny has none"),
        (["--stages", "2", "--mesh", "2x4"], "--mesh is the shape of one mesh; with --stages"),
        (["--stages", "2", "--schedule", "2f1b"], "'2f1b' is not one of"),
        (["--text", "/no/such/text"], "does not exist"),
    ],
)
def test_wrong_values_are_explained(run: Any, args: list[str], message: str) -> None:
    result = run(*args)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_values_reach_the_options(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def training(options: Any, *rest: Any) -> Any:
        seen.append(options)
        raise PlanError("enough")

    monkeypatch.setattr(train_module, "run_training", training)
    run("--mesh", "2x2x2", "--method", "megatron:2x4", "--memory", "1.5MiB", "--microbatches", "4")
    run("--microbatches", "auto")
    run("--stages", "auto", "--schedule", "gpipe")
    assert seen[0].mesh == (2, 2, 2)
    assert seen[0].method == "megatron:2x4"
    assert seen[0].memory_bytes == 1572864
    assert [options.microbatches for options in seen] == [4, "auto", None]
    assert (seen[2].stages, seen[2].schedule) == ("auto", "gpipe")


def test_help_teaches_each_choice() -> None:
    text = CliRunner().invoke(main, ["train", "--help"]).output
    for part in ("--text", "--model", "--mesh", "--method", "--microbatches", "--stages",
                 "--schedule", "--step", "Examples:", "`make()` returns",
                 "meshwise train --fresh --mesh 2x4 --method megatron:2x4"):  # fmt: skip
        assert part in text
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str) -> None:
    assert name in CliRunner().invoke(main, ["--help"]).output
    assert CliRunner().invoke(main, [name, "--help"]).exit_code == 0


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_commands_are_listed_without_the_train_extra(arguments: list[str]) -> None:
    code = (
        "import sys\n"
        "sys.modules.update(flax=None, optax=None, orbax=None)\n"
        "from meshwise.cli import main\n"
        f"main({arguments})"
    )
    command = (sys.executable, "-c", code)
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    said = found.stdout + found.stderr
    assert "Error" not in said
    for name, text in COMMANDS.items():
        assert f"{name.ljust(9)}  {text}" in said


def test_no_such_command() -> None:
    assert CliRunner().invoke(main, ["fly"]).exit_code == 2


def test_arrays_of_stages_are_shown_at_the_stages_that_hold_them() -> None:
    first, second = jax.devices()[:2]
    both = Mesh(np.array([[first], [second]]), ("stages", "x"))
    state = {
        "embed": jax.device_put(np.zeros(4), first),
        "head": jax.device_put(np.zeros(4), second),
        "stack": jax.device_put(np.zeros((2, 4)), NamedSharding(both, P("stages"))),
    }
    (stage,) = PLAN.stages
    stages = (stage, replace(stage, first_device=1))
    shown = _shown(layout_table(state, replace(PLAN, stages=stages)))
    assert "state on 2 stages (" in shown
    assert "\u2502 embed \u2502 4 \u2502 0 \u2502" in shown
    assert "\u2502 head \u2502 4 \u2502 1 \u2502" in shown
    assert "\u2502 stack \u2502 2x4 \u2502 0, 1 \u2502 1 \u2502 P(stages, -) \u2502" in shown
    shared = _shown(layout_table(state, replace(PLAN, stages=(*stages, *stages))))
    assert "state on 4 stages, mesh 0: stages 0, 2; mesh 1: stages 1, 3 (" in shared
    assert "\u2502 head \u2502 4 \u2502 1 \u2502" in shared


def test_layouts_are_written_as_in_plans_and_a_pattern_stands_for_several_arrays() -> None:
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))

    def placed(spec: P) -> jax.Array:
        return jax.device_put(np.zeros((4, 4)), NamedSharding(mesh, spec))

    state = {f"block_{k}": {"up": placed(P("x"))} for k in (1, 2)}
    state["block_0"] = {"up": placed(P(None, ("x", "y")))}
    shown = _shown(layout_table(state, PLAN))
    assert "state on mesh x=2, y=2 (P(-, x): dim 0 is whole, dim 1 is split over axis x)" in shown
    assert "\u2502 block_*/up \u2502 4x4 \u2502 2 \u2502 P(x, -) \u2502" in shown
    as_in_plans = layout_spec(Layout(((), (0, 1))), "xy")
    assert f"\u2502 block_0/up \u2502 4x4 \u2502 1 \u2502 {as_in_plans} \u2502" in shown


def _shown(table: Table) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(table)
    return " ".join(console.export_text().split())


def test_a_refusal_names_options_of_the_command(run: Any) -> None:
    class Refused(JitStep):
        def plan(self, state: Any, batch: Any) -> Any:
            raise InfeasibleError("num_microbatches='auto', or raise memory_bytes (memory_bytes=7)")

    result = run(step=Refused)
    assert result.exit_code == 1
    assert "Error: --microbatches auto, or raise --memory (--memory 7)" in result.output


def test_warnings_of_a_plan_name_options_and_come_once(run: Any) -> None:
    text = "wait; num_microbatches='auto' helps"

    class Warned(JitStep):
        def plan(self, state: Any, batch: Any) -> Any:
            warnings.warn(f"train_step: {text}", PlanWarning, stacklevel=1)
            warnings.warn("train_step: not of the plan's", PlanWarning, stacklevel=1)
            return replace(super().plan(state, batch), warnings=(text,))

    shown = " ".join(run(step=Warned).output.split())
    assert shown.count("warning: wait; --microbatches auto helps") == 1
    assert shown.count("warning: not of the plan's") == 1
    assert "PlanWarning" not in shown
    assert "num_microbatches" not in shown


def test_seconds_of_a_call_are_told_by_part(run: Any, tmp_path: Path) -> None:
    output = " ".join(run().output.split())
    assert " s in this call: " in output
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    parts = [summary[f"{name}_s"] for name in ("plan", "init", "steps", "checkpoints")]
    assert all(part > 0 for part in parts)
    assert sum(parts) <= summary["wall_s"]
    assert 0 < summary["first_save_s"] <= summary["checkpoints_s"]
    first_s = summary["first_save_s"]
    told = f" (the first {first_s:.1f} s, in which Orbax starts)"
    assert (told in output) == (first_s >= 0.05)
