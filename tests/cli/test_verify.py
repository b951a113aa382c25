"""`meshwise verify` and `plan --verify`: what is asked is checked before anything is planned."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from meshwise.cli import main
from meshwise.targets import packages
from meshwise.targets.packages import CompilerPackage

OPTIONS = ("--model", "gpt-tiny", "--cluster", "1x dgx-h100", "--batch", "16")


def test_a_target_without_verify_is_refused() -> None:
    found = CliRunner().invoke(main, ["plan", *OPTIONS, "--target", "h100"])
    assert found.exit_code == 2
    assert "--target goes with --verify" in found.output


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (("--target", "h10"), "no target 'h10'; there are v100"),
        ((), "missing-compiler, is not installed: `pip install"),
    ],
)
def test_what_cannot_be_verified_is_refused_before_planning(
    monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...], text: str
) -> None:
    missing = CompilerPackage(name="missing-compiler", file="x.so", extra="target-gpu")
    monkeypatch.setattr(packages, "PACKAGES", {"cuda": (missing,)})
    found = CliRunner().invoke(main, ["plan", *OPTIONS, "--verify", *more])
    assert found.exit_code == 1
    assert text in found.output
    assert "tracing" not in found.output


def test_a_file_that_is_no_plan_is_named(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text("{}")
    found = CliRunner().invoke(main, ["verify", str(path), "--model", "gpt-tiny"])
    assert found.exit_code == 1
    assert "plan.json" in found.output
