"""Settings that are drawn, and what is said of their steps."""

from __future__ import annotations

import json
from itertools import repeat
from pathlib import Path

import pytest
from click.testing import CliRunner
from evaluation.predictions import command
from evaluation.predictions.process import MEASURED
from evaluation.predictions.results import Result, findings, from_line
from evaluation.predictions.settings import Setting, drawn

SETTINGS = drawn(10, 0)


def result(predicted_s: float, measured_s: float, noise: float = 0.0) -> Result:
    seconds = (measured_s, measured_s * (1 + noise), measured_s * (1 - noise))
    setting = SETTINGS[0]
    return Result(setting=setting, predicted_s=predicted_s, seconds=seconds, meshes=((4,),))


def test_what_is_drawn_is_the_same_each_time_and_holds_everything() -> None:
    assert drawn(10, 0) == SETTINGS != drawn(10, 1)
    many = drawn(200, 2)
    assert {s.method for s in many} == {"IntraOp", "DataParallel", "Zero3", "stages"}
    assert {s.transfers for s in many} > {"broadcast", "send/recv"}
    assert {s.num_microbatches for s in many} == {1, 2, 4, 8}
    assert all(s == Setting(**json.loads(json.dumps(s.fields()))) for s in many)


def test_a_line_of_process_0_is_a_result() -> None:
    told = {"number": 1, "predicted_s": 2.0, "seconds": [1.0, 3.0, 2.5], "meshes": [[2], [2]]}
    found = from_line(MEASURED + json.dumps(told), SETTINGS)
    assert found is not None
    assert (found.setting, found.measured_s, found.ratio) == (SETTINGS[1], 2.5, 1.25)
    assert found.noise == 0.6
    assert from_line("planned", SETTINGS) is None


def test_findings_count_what_is_close_and_in_order() -> None:
    right = [result(1.0, 1.1), result(2.0, 2.2), result(4.0, 5.2)]
    assert findings(right) == [
        "2 of 3 steps take within 15 % of what was predicted (goal: 8 of 10), the worst is 30% off "
        "(goal: 30 %).",
        "The slowest takes 4.7 times as long as the fastest.",
        "Of 3 pairs that differ by more than their noise, 3 come in the order that was predicted.",
    ]
    # Within their noise none comes before the other.
    assert findings(list(repeat(result(1.0, 1.0, 0.1), 2)))[2].startswith("Of 0 pairs")
    wrong = findings([result(2.0, 1.0), result(1.0, 2.0)])
    assert wrong[2].startswith("Of 1 pairs that differ by more than their noise, 0 come")


def test_a_page_that_cannot_be_written_costs_no_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "obstacle", lambda: None)
    monkeypatch.setattr(command, "Testbed", None)
    (tmp_path / "file").touch()
    result = CliRunner().invoke(command.predictions, ["--page", str(tmp_path / "file" / "x.md")])
    assert result.exit_code == 1
    assert "cannot write" in result.output
