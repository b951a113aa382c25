"""What follows from the beats of processes, at times that the tests say."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from meshwise.runtime.job.beats import LEFT_S, LOST_S, SILENT_S, SLOW_S, Beat, Fault, Observer


def beats(**numbers: int) -> dict[int, Beat]:
    return {int(name[1:]): Beat(number=number) for name, number in numbers.items()}


def test_a_process_that_beats_is_there() -> None:
    observer = Observer(0)
    for second in range(100):
        observer.see(beats(p0=1, p1=second), float(second))
        assert observer.fault(second + 0.9) is None


def test_a_process_that_beats_no_more_is_gone_and_what_it_was_at_is_told() -> None:
    observer = Observer(0)
    observer.see({1: Beat(number=1), 2: Beat(number=1, place="in step 3")}, 0.0)
    observer.see({1: Beat(number=2), 2: Beat(number=1, place="in step 3")}, SILENT_S)
    assert observer.fault(SILENT_S) is None
    found = observer.fault(SILENT_S + 1)
    assert found == Fault(
        process=2,
        text="process 2 has given no sign of life for 10 s, and was in step 3; start the job again "
        "from its last checkpoint",
    )


def test_where_a_connection_broke_a_shorter_silence_counts() -> None:
    observer = Observer(0)
    observer.see(beats(p1=1), 0.0)
    assert observer.fault(LOST_S + 0.1) is None
    assert observer.fault(LOST_S + 0.1, silent_s=LOST_S) is not None


def test_own_silence_and_processes_never_seen_do_not_count() -> None:
    observer = Observer(0)
    observer.see(beats(p0=1), 0.0)
    assert observer.fault(1e6) is None


def test_after_standing_still_a_process_counts_anew() -> None:
    observer = Observer(0)
    observer.see(beats(p1=1), 0.0)
    observer.wake(60.0)
    assert observer.fault(60.0 + SILENT_S) is None
    assert observer.fault(61.0 + SILENT_S) is not None


def test_a_process_that_ended_may_be_silent_unless_another_waits() -> None:
    observer = Observer(0)
    ended = {0: Beat(number=1), 1: Beat(number=9, state="ended"), 2: Beat(number=1)}
    observer.see(ended, 0.0)
    observer.see({2: Beat(number=2, place="at the sums", waits_s=LEFT_S - 1)}, 1e3)
    assert observer.fault(1e3) is None
    observer.see({2: Beat(number=3, place="at the sums", waits_s=LEFT_S + 1)}, 1e3 + 2)
    found = observer.fault(1e3 + 2)
    assert found is not None
    assert found.process == 1
    assert found.text == "process 1 has ended, and process 2 has waited for 21 s at the sums"


def test_slow_processes_are_told_of_once_for_each_limit() -> None:
    observer = Observer(0)
    told: list[str] = []
    for second in range(100):
        waits_s = float(min(second, 80))
        observer.see({1: Beat(number=second, place="in step 3", waits_s=waits_s)}, float(second))
        told += observer.slow()
    assert told == [f"process 1 has waited for {limit + 1:.0f} s in step 3" for limit in SLOW_S]
    observer.see({1: Beat(number=101)}, 101.0)
    assert observer.slow() == []


@given(
    st.integers(0, 2**40), st.sampled_from(["runs", "ended"]), st.text(max_size=50), st.floats(0, 9)
)
def test_a_beat_and_a_fault_are_read_as_they_were_written(number, state, place, waits_s) -> None:
    beat = Beat(number=number, state=state, place=place, waits_s=waits_s)
    assert Beat.from_bytes(beat.to_bytes()) == beat
    fault = Fault(process=number, text=place)
    assert Fault.from_bytes(fault.to_bytes()) == fault
