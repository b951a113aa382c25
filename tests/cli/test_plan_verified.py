"""`plan --verify`: which plan is written, with which memory, and what is told on the way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from doubles.compiled_plans import verification
from doubles.perceptron import perceptron
from meshwise.cli import main, plan_verification
from meshwise.cluster.spec import ClusterSpec
from meshwise.errors import ProgramError
from meshwise.plan.plan import Plan
from meshwise.units import MIB

pytestmark = pytest.mark.usefixtures("compiled_kernels")

OPTIONS = (
    *("--step", "cli.test_plan_verified:many_rows", "--cluster", "1x p3.8xlarge"),
    *("--layers", "3", "--microbatches", "4", "--verify"),
)
MEMORY = 7 * MIB
EARLIER = '{"a good plan": "of an earlier run"}'


def many_rows() -> tuple[Any, Any, Any]:
    """A step that can do with less memory than its fastest plan: it can recompute activations."""
    return perceptron((256,) * 4, 4096)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[Result, Path]]:
    """Runs `plan --verify --out` with a compiler that makes so many bytes of those predicted."""

    def running(*compiled: Callable[[int], int], options: tuple[str, ...] = ()) -> Any:
        answers = iter(compiled)
        monkeypatch.setattr("meshwise.api.verify.check_target", lambda *_: None)
        monkeypatch.setattr(
            plan_verification,
            "verify_planned",
            lambda p, *_: verification(p.plan, next(answers, compiled[-1])),
        )
        out = tmp_path / "plan.json"
        out.write_text(EARLIER)
        asked = [*OPTIONS, *options, "--out", str(out)]
        return CliRunner().invoke(main, ["plan", *asked]), out

    return running


def test_what_the_compiler_rejects_is_not_written(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshwise.api.verified_plan._MOST_PLANS", 2)
    found, out = run(lambda _: MEMORY + 1, options=("--memory", str(MEMORY)))
    assert found.exit_code == 1
    assert "none of 2 plans fits by the compiler" in found.output
    assert out.read_text() == EARLIER


def test_a_compiler_that_fails_leaves_the_file_as_it_was(run: Any) -> None:

    def failing(_: int) -> int:
        raise ProgramError("the compiler refuses it")

    found, out = run(failing)
    assert found.exit_code == 1
    assert "the compiler refuses it" in found.output
    assert out.read_text() == EARLIER
    kept = Plan.from_json((out.parent / "plan.unverified.json").read_text())
    assert (kept.num_microbatches, kept.verified) == (4, "")
    assert "plan.unverified.json" in found.output


@pytest.mark.parametrize("options", [(), ("--memory", str(MEMORY))])
def test_the_plan_that_fits_is_written_with_the_memory_that_there_is(
    run: Any, options: tuple[str, ...]
) -> None:
    cluster = ClusterSpec.virtual("1x p3.8xlarge")
    has = MEMORY if options else cluster.device.memory_bytes
    found, out = run(lambda _: has + 1, lambda predicted: predicted, options=options)
    assert found.exit_code == 0
    assert found.output.count("planned again for") == 1
    plan = Plan.from_json(out.read_text())
    assert plan.verified.startswith("a compiler 1.0 for h100")
    assert {stage.memory_bytes for stage in plan.stages} == {has}
    assert plan.cluster == cluster
