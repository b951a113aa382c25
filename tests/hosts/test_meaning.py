"""A pipeline over processes is the step: the oracle is JAX on one device (I1)."""

from __future__ import annotations

import pytest

from doubles.processes import run_job, texts


def assert_meaning(devices: tuple[int, ...], cases: list[str]) -> None:
    ended = run_job("hosts.meaning", devices, cases, limit_s=120 + 60 * len(cases))
    for process in ended:
        passed = [line for line in process.text.splitlines() if line.startswith("passed")]
        assert process.code == 0, texts(ended)
        assert len(passed) == len(cases), texts(ended)


@pytest.mark.parametrize(
    ("devices", "cases"),
    [
        ((4, 4), ["small:3", "small:4", "rows:4", "parts:3"]),
        ((3, 3, 2), ["small:19", "rows:4"]),
        pytest.param((4, 4), [f"rows:{n}" for n in range(0, 24, 4)], marks=pytest.mark.slow),
        pytest.param((4, 4), [f"parts:{n}" for n in range(1, 24, 4)], marks=pytest.mark.slow),
        pytest.param(
            (2, 2, 2, 2),
            [*(f"rows:{n}" for n in range(2, 24, 4)), *(f"parts:{n}" for n in range(3, 24, 4))],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_pipeline_over_processes_is_the_step(devices: tuple[int, ...], cases: list[str]) -> None:
    assert_meaning(devices, cases)


def test_steps_as_users_write_them_run_over_processes() -> None:
    ended = run_job("hosts.steps", (2, 2), limit_s=200)
    for process in ended:
        assert process.code == 0, texts(ended)
        assert "passed" in process.text, texts(ended)
