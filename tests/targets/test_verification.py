"""Plans as XLA:GPU and XLA:TPU compile them for devices that are not here."""

from __future__ import annotations

import itertools
import json
import re
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import optax
import pytest
from click.testing import CliRunner

import meshwise as mw
from doubles.perceptron import perceptron_pipeline
from meshwise.api.parallel_step import ParallelStep
from meshwise.cli import main
from meshwise.cluster.collectives import collective_time_s
from meshwise.errors import ClusterError, PlanError, PlanWarning, ProgramError
from meshwise.system.progress import told_if_slow
from meshwise.targets import lowered, verification
from meshwise.targets.catalog import TARGETS, CompileTarget
from meshwise.targets.child import refused_memory
from meshwise.targets.compiler import TargetProgram
from meshwise.targets.reserve import reserves, usable_bytes
from meshwise.targets.verification import Verification, VerifiedStage, VerifiedTarget
from meshwise.units import GIB

OWN_STEP = ("--step", "doubles.perceptron:wide_perceptron")
CLUSTER = mw.Cluster.virtual("1x dgx-h100")
WIDTH, ROWS = 64, 32
TX = optax.adam(1e-3)
SPEC = jax.ShapeDtypeStruct


def train_step(state, batch):
    params, opt = state

    def loss_fn(p):
        hidden = jnp.tanh(batch["x"] @ p["up"])
        return jnp.mean((hidden @ p["down"] - batch["y"]) ** 2)

    loss, grads = mw.value_and_grad(loss_fn)(params)
    updates, opt = TX.update(grads, opt, params)
    return (optax.apply_updates(params, updates), opt), loss


def arguments():
    params = {
        "up": SPEC((WIDTH, 4 * WIDTH), "float32"),
        "down": SPEC((4 * WIDTH, WIDTH), "float32"),
    }
    rows = SPEC((ROWS, WIDTH), "float32")
    return (params, jax.eval_shape(TX.init, params)), {"x": rows, "y": rows}


@pytest.mark.usefixtures("gpu_compiler")
def test_the_compiler_says_what_a_plan_needs_and_sends() -> None:
    step = mw.parallelize(train_step, method=mw.Zero3(), cluster=CLUSTER)
    told: list[str] = []
    found = step.verify(*arguments(), listener=lambda name, _: told.append(name))
    plan = step.plan(*arguments())
    assert told == ["the step"]
    assert found.target == "h100"
    assert found.fits
    assert found.predicted_bytes == plan.peak_bytes
    # State and rows of one device at least.
    (program,) = found.programs
    state_bytes = 3 * 2 * 4 * WIDTH * WIDTH * 4 // 8
    assert program.memory.argument_bytes >= state_bytes
    assert program.memory.alias_bytes >= state_bytes
    for item in found.collectives:
        assert item.compiled_bytes == pytest.approx(item.planned_bytes, rel=0.05)
        assert item.compiled_number <= item.planned_number
        # The plan knows that they are merged, up to one latency.
        latency_s = collective_time_s(item.kind, (0,), 0, plan.mesh)
        assert abs(item.planned_s - item.compiled_s) <= latency_s
        alone_s = item.compiled_s + (item.planned_number - item.compiled_number) * latency_s
        assert item.planned_s < alone_s
        assert 0 <= item.hidden_s <= item.compiled_s
    assert max(item.merged for item in found.collectives) > 1
    assert json.loads(found.to_json())["fits"]
    assert "fits. The fullest device needs" in found.explain()
    # From disk the second time: no process is started.
    again = step.verify(*arguments())
    assert again == found


@pytest.mark.usefixtures("gpu_compiler")
def test_a_pipeline_is_verified_program_by_program() -> None:
    method = mw.Auto(stages=2, schedule="1f1b")
    step = mw.parallelize(train_step, method=method, cluster=CLUSTER, num_microbatches=2)
    found = step.verify(*arguments())
    assert [stage.stage for stage in found.stages] == [0, 1]
    assert {"forward of layer 0", "backward of layer 0"} <= {p.name for p in found.programs}
    passes = [p for p in found.programs if p.name.startswith("forward")]
    assert all(p.count % 2 == 0 for p in passes)


@pytest.mark.usefixtures("compiler_double", "compiled_kernels")
def test_each_stage_is_compiled_for_its_own_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = verification.compile_programs
    asked: dict[str, list[str]] = {}

    def spied(target: CompileTarget, programs: Any, listener: Any) -> Any:
        asked[target.name] = [program.name for program in programs]
        answers = compiled(target, programs, listener=listener)
        # Each device has answers of its own.
        more = 1000 * len(asked)
        return [
            replace(a, memory=replace(a.memory, temporary_bytes=more + n))
            for n, a in enumerate(answers)
        ]

    monkeypatch.setattr(verification, "compile_programs", spied)
    made = perceptron_pipeline(num_stages=2)
    targets = [TARGETS["h100"], TARGETS["v5e"]]
    found = verification.verify_pipeline(made.layers, made.plan, made.decisions, targets)
    assert [stage.target for stage in found.stages] == ["h100", "v5e"] == list(asked)
    first, last = made.plan.stages
    for name, stage in zip(asked, (first, last), strict=True):
        layers = {int(program.rpartition(" ")[2]) for program in asked[name]}
        assert layers == set(range(stage.first_layer, stage.last_layer + 1))
    assert found.target == "h100, v5e"
    for program in found.programs:
        names, more = asked[program.target], 1000 * (1 + list(asked).index(program.target))
        assert program.memory.temporary_bytes == more + names.index(program.name)
    assert [line[:15] for line in found.explain().splitlines() if "Kept back" in line] == [
        "Usable on h100:",
        "Usable on v5e: ",
    ]


@pytest.mark.usefixtures("gpu_compiler")
@pytest.mark.parametrize("target", ["h100", "a100-80"])
def test_gpus_hide_collectives(target: str) -> None:
    """An A100 does so only if the compiler is told to, see `spmd/program.compile_options`."""
    step = mw.parallelize(train_step, method=mw.Zero3(), cluster=CLUSTER)
    found = step.verify(*arguments(), target=target)
    assert sum(item.hidden_s for item in found.collectives) > 0


@pytest.mark.usefixtures("gpu_compiler")
def test_what_a_compiler_refuses_is_named() -> None:
    step = mw.parallelize(train_step, method=mw.DataParallel(), cluster=CLUSTER)
    with pytest.raises(ProgramError, match="does not compile the step for v100"):
        step.verify(*arguments(), target="v100")


@pytest.mark.slow
@pytest.mark.usefixtures("tpu_compiler")
@pytest.mark.parametrize(("count", "num_devices"), [(1, 8), (2, 16)])
def test_the_compiler_of_tpus_says_what_a_plan_needs(count: int, num_devices: int) -> None:
    cluster = mw.Cluster.virtual(f"{count}x tpu-v5e")
    step = mw.parallelize(train_step, method=mw.Zero3(), cluster=cluster)
    found = step.verify(*arguments())
    assert (found.target, found.fits) == ("v5e", True)
    (program,) = found.programs
    state_bytes = 3 * 2 * 4 * WIDTH * WIDTH * 4 // num_devices
    assert program.memory.argument_bytes >= state_bytes
    assert {"all-gather"} <= {item.kind for item in found.collectives if item.compiled_bytes}


@pytest.mark.slow
@pytest.mark.usefixtures("tpu_compiler")
def test_what_no_tpu_holds_does_not_fit() -> None:
    step = mw.parallelize(
        lambda state, rows: (state, jnp.sort(rows, axis=1)),
        method=mw.DataParallel(),
        cluster=CLUSTER,
    )
    found = step.verify(SPEC((), "float32"), SPEC((2**23, 4096), "float32"), target="v5e")
    assert not found.fits
    # Rows of one device come in, and go out sorted.
    assert found.compiled_bytes >= 2 * 2**23 * 4096 * 4 // 8
    assert found.programs[0].is_too_large
    assert "The compiler refused the step" in found.explain()


def test_a_mesh_of_which_there_is_no_slice_is_refused_before_it_is_lowered() -> None:
    step = mw.parallelize(
        train_step, method=mw.DataParallel(), cluster=mw.Cluster.virtual("3x dgx-h100")
    )
    state, rows = arguments()
    with pytest.raises(ClusterError, match="no slice of v5e has 24 devices"):
        step.verify(state, {name: SPEC((48, WIDTH), "float32") for name in rows}, target="v5e")


@pytest.fixture(scope="module")
def planned_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan of a step of one's own for eight H100."""
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    how = ("--cluster", "1x dgx-h100", "--layers", "3", "--microbatches", "4")
    made = CliRunner().invoke(main, ["plan", *OWN_STEP, *how, "--out", str(path)])
    assert made.exit_code == 0, made.output
    return path


@pytest.mark.usefixtures("compiler_double", "compiled_kernels")
def test_a_file_is_verified_and_its_exit_code_says_whether_it_fits(
    monkeypatch: pytest.MonkeyPatch, planned_file: Path
) -> None:
    fits = CliRunner().invoke(main, ["verify", str(planned_file), *OWN_STEP])
    assert fits.exit_code == 0, fits.output
    (small,) = verification.compile_programs(TARGETS["h100"], [cast(TargetProgram, None)])
    large = replace(small, memory=replace(small.memory, temporary_bytes=50 * GIB))
    monkeypatch.setattr(
        verification, "compile_programs", lambda _, programs, listener: [large] * len(programs)
    )
    # Enough for the H100 of the plan, too much for other devices.
    assert CliRunner().invoke(main, ["verify", str(planned_file), *OWN_STEP]).exit_code == 0
    found = CliRunner().invoke(
        main, ["verify", str(planned_file), *OWN_STEP, "--target", "a100-40"]
    )
    assert found.exit_code == 3
    assert "a100-40, compiled by a compiler 1.0: does not fit." in found.output


@pytest.mark.usefixtures("compiler_double", "compiled_kernels")
def test_warnings_and_progress_of_a_file_are_lines_of_the_command(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, planned_file: Path
) -> None:
    """Not of Python's, which name a line of a package and arguments."""
    text = "with num_microbatches=8 there is less of it"
    usual = ParallelStep.verify

    def verify(step: ParallelStep, *args: Any, **kwargs: Any) -> Any:
        with told_if_slow("planning", patience_s=0.0):
            warnings.warn(text, PlanWarning, stacklevel=2)
            time.sleep(0.05)
        return usual(step, *args, **kwargs)

    monkeypatch.setattr(ParallelStep, "verify", verify)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PlanWarning)
        found = CliRunner().invoke(main, ["verify", str(planned_file), *OWN_STEP])
    assert found.exit_code == 0, found.output
    assert "warning: with --microbatches 8 there is less of it" in found.stderr
    assert "basicConfig" not in caplog.text


@pytest.mark.usefixtures("compiler_double", "compiled_kernels")
def test_a_plan_of_another_step_is_not_compiled(planned_file: Path) -> None:
    other = ["--model", "gpt-tiny", "--batch", "16"]
    found = CliRunner().invoke(main, ["verify", str(planned_file), *other])
    assert found.exit_code == 1
    assert re.search("batch|another step", found.output)


def test_an_unknown_target_is_refused() -> None:
    step = mw.parallelize(train_step, method=mw.DataParallel(), cluster=CLUSTER)
    with pytest.raises(ClusterError, match="no target 'h1'"):
        step.verify(*arguments(), target="h1")


@pytest.mark.usefixtures("compiler_double")
def test_programs_hold_what_the_compiler_says() -> None:
    step = mw.parallelize(train_step, method=mw.DataParallel(), cluster=CLUSTER)
    found = step.verify(*arguments())
    (program,) = found.programs
    assert found.compiled_bytes == program.memory.peak_bytes == 13
    assert json.loads(found.to_json())["programs"] == [
        {
            "name": "the step",
            "target": "h100",
            "count": 1,
            "memory": {
                **{"argument_bytes": 5, "output_bytes": 3},
                **{"alias_bytes": 2, "temporary_bytes": 7},
            },
            "compile_s": 1.5,
            "is_too_large": False,
        }
    ]


@pytest.mark.usefixtures("compiler_double")
def test_a_program_that_no_device_holds_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = refused_memory(
        "the total memory required for HLO temporaries (900.00G) exceeds available HBM (75.00G)", 1
    )
    monkeypatch.setattr(
        verification, "compile_programs", lambda _, programs, listener: [refused] * len(programs)
    )
    step = mw.parallelize(train_step, method=mw.Zero3(), cluster=CLUSTER)
    found = step.verify(*arguments())
    assert not found.fits
    assert found.compiled_bytes == 900 * GIB
    assert "The compiler refused the step" in found.explain()
    assert all(item.compiled_bytes == 0 for item in found.collectives)


@pytest.mark.usefixtures("compiler_double")
def test_a_step_that_jax_does_not_lower_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise ValueError("64 is odd")  # As Pallas says of a kernel.

    monkeypatch.setattr(lowered, "jitted_step", lambda *_: jax.jit(refused))
    step = mw.parallelize(train_step, method=mw.DataParallel(), cluster=CLUSTER)
    with pytest.raises(ProgramError, match="JAX does not lower the step for cuda: 64 is odd"):
        step.verify(*arguments())


@pytest.mark.usefixtures("compiler_double")
@pytest.mark.parametrize("ordered", [False, True], ids=["", "ordered"])
def test_a_call_of_python_is_named(ordered: bool) -> None:
    def told(weights: Any, batch: Any) -> Any:
        jax.debug.print("a step", ordered=ordered)
        return train_step(weights, batch)

    step = mw.parallelize(told, method=mw.DataParallel(), cluster=CLUSTER)
    with pytest.raises(ProgramError, match=r"calls Python \(\w+ at test_verification.py:\d+"):
        step.verify(*arguments())


@pytest.mark.usefixtures("compiler_double")
@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (ValueError("64 is odd"), ProgramError, "JAX does not lower layer 1 for cuda: 64 is odd"),
        (PlanError("our own"), PlanError, "^our own$"),
    ],
)
def test_a_layer_that_jax_does_not_lower_is_named(
    monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[Exception], text: str
) -> None:
    lowered_layers = lowered.lowered_layers

    def first_layer_only(*args: Any, **options: Any) -> Iterator[Any]:
        yield from itertools.islice(lowered_layers(*args, **options), 1)
        raise error

    monkeypatch.setattr(lowered, "lowered_layers", first_layer_only)
    step = mw.parallelize(
        train_step, method=mw.Auto(stages=2, schedule="1f1b"), cluster=CLUSTER, num_microbatches=2
    )
    with pytest.raises(kind, match=text):
        step.verify(*arguments())


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_the_recommended_pool_holds_what_is_usable(target: CompileTarget) -> None:
    stage = VerifiedStage(
        stage=0, target=target.name, predicted_bytes=1, compiled_bytes=1, limit_bytes=1
    )
    verified_target = VerifiedTarget(
        name=target.name,
        compiler="a compiler 1.0",
        memory_bytes=target.memory_bytes,
        reserves=reserves(target),
        usable_bytes=usable_bytes(target),
    )
    found = Verification(
        targets=(verified_target,),
        stages=(stage,),
        programs=(),
        collectives=(),
    )
    rows = [line.split()[:2] for line in found.explain().splitlines()]
    assert ["mesh", "target"] in rows
    assert ["stage", "target"] not in rows
    fractions = re.findall(r"XLA_PYTHON_CLIENT_MEM_FRACTION=(0\.\d{4})\.", found.explain())
    if target.platform != "cuda":
        assert not fractions
        return
    (fraction,) = fractions
    more = float(fraction) * target.memory_bytes - usable_bytes(target)
    assert 0 <= more < 0.001 * target.memory_bytes
