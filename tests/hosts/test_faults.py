"""A process dies or stands still while it trains: all end soon, and training goes on."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from evaluation.faults.cases import NUM_STEPS
from evaluation.faults.faults import CUT, INSTRUCTION, KILL, PART, RAISE, STEP, STOP, TERM, Fault
from evaluation.faults.network import host_outcomes
from evaluation.faults.outcome import Outcome, on_this_machine, on_two_hosts, run_with_faults
from evaluation.hosts.obstacle import obstacle

from meshwise.system.exit_codes import START_AGAIN


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    outcome = run_with_faults(tmp_path_factory.mktemp("whole"), 2, NUM_STEPS, ())
    assert outcome.code == 0, outcome.text
    return outcome


def assert_survived(outcome: Outcome, undisturbed: Outcome) -> None:
    assert outcome.code == 0, outcome.text
    assert outcome.leftovers == ()
    assert outcome.steps == undisturbed.steps, outcome.text
    assert outcome.num_repeated <= 3


@pytest.mark.slow
def test_training_goes_on_after_a_kill_in_the_midst_of_a_step(
    tmp_path: Path, undisturbed: Outcome
) -> None:
    fault = Fault(process=1, what=KILL, place=INSTRUCTION, number=110)
    outcome = run_with_faults(tmp_path, 2, NUM_STEPS, [fault])
    assert_survived(outcome, undisturbed)
    assert "[launch] host 1 was ended by SIGKILL" in outcome.text
    assert "[launch] starting again (restart 1 of at most 1)" in outcome.text


@pytest.mark.slow
def test_a_process_that_stands_still_is_found(tmp_path: Path, undisturbed: Outcome) -> None:
    fault = Fault(process=1, what=STOP, place=INSTRUCTION, number=110)
    outcome = run_with_faults(tmp_path, 2, NUM_STEPS, [fault])
    assert_survived(outcome, undisturbed)
    assert "process 1 has given no sign of life for" in outcome.text
    # What process 0 was at, and what ended the job.
    assert "process 0 was in step 3, at instruction" in outcome.text
    assert f"[launch] host 0 ended with exit code {START_AGAIN}" in outcome.text


@pytest.mark.slow
def test_what_fails_in_one_process_ends_all_with_its_text(
    tmp_path: Path, undisturbed: Outcome
) -> None:
    fault = Fault(process=1, what=RAISE, place=STEP, number=3)
    outcome = run_with_faults(tmp_path, 2, NUM_STEPS, [fault])
    assert_survived(outcome, undisturbed)
    assert "[launch] cause: process 1 failed: ValueError: what a user did wrong" in outcome.text


@pytest.mark.slow
def test_a_signal_to_one_of_three_saves_in_all_and_loses_no_step(tmp_path: Path) -> None:
    three = partial(on_this_machine, num_processes=3)
    whole = run_with_faults(tmp_path / "whole", 3, NUM_STEPS, (), starter=three)
    assert whole.code == 0, whole.text
    fault = Fault(process=1, what=TERM, place=INSTRUCTION, number=75)
    outcome = run_with_faults(tmp_path / "ended", 3, NUM_STEPS, [fault], starter=three)
    assert_survived(outcome, whole)
    assert outcome.num_repeated == 0
    assert f"ended with exit code {START_AGAIN}" in outcome.text


@pytest.mark.slow
def test_training_goes_on_on_two_hosts_with_poor_links(
    tmp_path: Path, undisturbed: Outcome
) -> None:
    """Packets are lost; a link is cut for 5 s, a process is killed, a link is cut for good."""
    reason = obstacle()
    if reason is not None:
        pytest.skip(reason)
    faults = [
        Fault(process=1, what=CUT, place=INSTRUCTION, number=40),
        Fault(process=0, what=KILL, place=INSTRUCTION, number=110),
        Fault(process=1, what=PART, place=INSTRUCTION, number=40, attempt=1),
    ]
    outcome = run_with_faults(tmp_path, 2, NUM_STEPS, faults, starter=on_two_hosts)
    assert_survived(outcome, undisturbed)
    assert outcome.text.count("[launch] starting again") == 2


@pytest.mark.slow
def test_links_that_are_cut_and_processes_that_die_unwatched(tmp_path: Path) -> None:
    reason = obstacle()
    if reason is not None:
        pytest.skip(reason)
    whole, short, *final = host_outcomes(tmp_path)
    assert (whole.codes, short.codes) == ((0, 0), (0, 0))
    assert whole.losses == short.losses
    for outcome in final:
        assert outcome.codes[0] == START_AGAIN, outcome
        assert "process 1 has given no sign of life" in outcome.said, outcome
        assert outcome.losses.items() <= whole.losses.items()
