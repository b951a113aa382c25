"""Jobs of many steps hold no more in the end, and do not hang where everything comes late."""

from __future__ import annotations

import pytest

from doubles.processes import run_job, texts

pytestmark = pytest.mark.slow


def assert_passed(devices: tuple[int, ...], args: list[str], limit_s: float) -> None:
    ended = run_job("hosts.endurance", devices, args, limit_s=limit_s)
    for process in ended:
        assert process.code == 0, texts(ended)
        assert "passed" in process.text, texts(ended)


@pytest.mark.parametrize("transport", ["sockets", "device_put"])
def test_a_process_holds_no_more_after_2000_steps(transport: str) -> None:
    assert_passed((1, 1), ["2000", "steady", transport], limit_s=400)


@pytest.mark.parametrize("seed", ["0", "1"])
def test_1000_steps_on_four_processes_with_random_delays(seed: str) -> None:
    assert_passed((1, 1, 1, 1), ["1000", "delays", seed], limit_s=900)
