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


# Where the transport stands before a case, processes that have neither end take part in transfers.
@pytest.mark.parametrize(
    ("devices", "cases"),
    [
        ((4, 4), ["small:3", "rows:4", "parts:3", "folded:0"]),
        pytest.param((4, 4), ["small:4"], marks=pytest.mark.slow),
        pytest.param((4, 4), [f"folded:{n}" for n in range(1, 8)], marks=pytest.mark.slow),
        pytest.param(
            (4, 4), ["device_put:folded:0", "device_put:folded:3"], marks=pytest.mark.slow
        ),
        pytest.param(
            (3, 3, 2), ["small:19", "rows:4", "device_put:small:28"], marks=pytest.mark.slow
        ),
        pytest.param((4, 4), [f"rows:{n}" for n in range(0, 24, 4)], marks=pytest.mark.slow),
        pytest.param((4, 4), [f"parts:{n}" for n in range(1, 24, 4)], marks=pytest.mark.slow),
        pytest.param(
            (2, 2, 2, 2),
            [*(f"rows:{n}" for n in range(2, 24, 4)), *(f"parts:{n}" for n in range(3, 24, 4))],
            marks=pytest.mark.slow,
        ),
        pytest.param((4, 4), ["device_put:small:3"], marks=pytest.mark.slow),
        pytest.param(
            (4, 4),
            ["device_put:rows:4", "device_put:parts:3", "device_put:parts:4"],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            (3, 3, 2), ["device_put:small:34", "device_put:any:15"], marks=pytest.mark.slow
        ),
    ],
)
def test_a_pipeline_over_processes_is_the_step(devices: tuple[int, ...], cases: list[str]) -> None:
    assert_meaning(devices, cases)


@pytest.mark.slow
@pytest.mark.parametrize(
    "step_and_transport",
    [
        ["layers"],
        ["gpt"],
        ["gpt", "device_put"],
    ],
    ids=" ".join,
)
def test_steps_as_users_write_them_run_over_processes(step_and_transport: list[str]) -> None:
    ended = run_job("hosts.steps", (2, 2), step_and_transport, limit_s=200)
    for process in ended:
        assert process.code == 0, texts(ended)
        assert "passed" in process.text, texts(ended)


@pytest.mark.slow
def test_arrays_get_from_any_devices_to_any_others() -> None:
    transports = ["sockets", "device_put"]
    ended = run_job("hosts.passages", (2, 3, 2), transports, limit_s=100)
    for process in ended:
        assert process.code == 0, texts(ended)
        for transport in transports:
            assert f"passed {transport}" in process.text, texts(ended)


@pytest.mark.slow
def test_state_in_the_memory_of_hosts_changes_no_bit() -> None:
    ended = run_job("hosts.offload", (2, 2), [], limit_s=200)
    for process in ended:
        assert process.code == 0, texts(ended)
        assert "passed" in process.text, texts(ended)


@pytest.mark.slow
def test_state_stays_when_the_batch_changes_its_size() -> None:
    ended = run_job("hosts.shapes", (2, 2), [], limit_s=200)
    for process in ended:
        assert process.code == 0, texts(ended)
        assert "passed" in process.text, texts(ended)
