"""Schedules as text, against files that were read by people."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwise.schedules.registry import SCHEDULES, make_schedule, tables
from meshwise.schedules.text import schedule_text

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "schedules"


@pytest.mark.parametrize("name", tables())
def test_a_schedule_reads_as_its_golden_file(name, golden):
    stages = 4 * SCHEDULES[name].chunks
    schedule = make_schedule(name, num_stages=stages, num_microbatches=8, num_meshes=4)
    golden(f"schedules/{name}.txt", schedule_text(schedule))


def test_every_golden_file_has_its_schedule():
    assert {path.stem for path in GOLDEN.iterdir()} == set(tables())
