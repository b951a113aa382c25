"""AlpaComm measured: what is sent, what is compared, and one case between hosts of a testbed."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from evaluation.__main__ import main
from evaluation.alpacomm.measured.page import MeasuredPage
from evaluation.alpacomm.measured.results import (
    PLAIN,
    Compared,
    Measured,
    compared,
    from_line,
    line_of,
    order,
    plain_rate,
)
from evaluation.alpacomm.measured.run import hosts_needed, measure
from evaluation.alpacomm.measured.transfers import (
    CASE_NAMES,
    MeasuredTransfer,
    sized_case,
    transfers,
)
from evaluation.hosts.obstacle import obstacle
from evaluation.hosts.testbed import Testbed
from evaluation.machine import Machine

from meshwise.resharding.cross_mesh.cross_mesh_plan import BEST, NAIVE
from meshwise.resharding.cross_mesh.strategies import (
    BROADCAST,
    GATHERED,
    GLOBAL_GATHERED,
    SEND_RECV,
    STRATEGIES,
)
from meshwise.units import MIB

ROOT = Path(__file__).resolve().parents[2]
REASON = obstacle()


def measured(transfer: MeasuredTransfer, seconds: float, surplus: int = 0) -> Measured:
    """A result in which every host was sent what it should be, and so many bytes more."""
    sizes = transfer.received_bytes()
    received = tuple(sizes.get(host, 0) + surplus * (host in sizes) for host in range(5))
    return Measured(
        case=transfer.case.name,
        way=transfer.way,
        seconds=(2 * seconds, seconds),
        received_bytes=tuple(2 * size for size in received),
        sent_bytes=(2 * sum(received), 0, 0, 0, 0),
        counted_received=tuple(round(2.02 * size) for size in received),
        counted_sent=(round(2.02 * sum(received)), 9, 9, 9, 9),
    )


def rows_of(times: dict[str, float], surplus: int = 0) -> list[Compared]:
    listed = transfers(["7"], 1, tuple(times))
    found = [measured(each, times[each.strategy], surplus) for each in listed]
    return compared(listed, found, 1e6)


def page_of(rows: list[Compared]) -> MeasuredPage:
    return MeasuredPage(
        command="python -m evaluation alpacomm-measured",
        machine=Machine(date="2026-11-26", loop_s=0.05, load=1.0),
        num_hosts=3,
        rate_mbit=8,
        mib=1,
        repeats=2,
        stream_bytes_per_s=1e6,
        plain_bytes_per_s=1e6,
        rows=rows,
    )


def test_cases_have_the_size_that_is_wanted() -> None:
    for name in CASE_NAMES:
        assert sized_case(name, 16).num_bytes == pytest.approx(16 * MIB, rel=0.005)
    assert sized_case("6", 16).shape == (384, 128, 85)
    assert hosts_needed(CASE_NAMES) == 5


def test_all_strategies_are_measured_and_orderings_where_they_differ() -> None:
    listed = transfers(CASE_NAMES, 16)
    best = [each for each in listed if each.algorithm == BEST]
    assert len(best) == len(CASE_NAMES) * len(STRATEGIES)
    assert {each.case.name for each in listed if each.algorithm == NAIVE} == set("234569")
    assert {each.way for each in transfers(["5"], 16, (GATHERED,))} == {GATHERED}


def test_each_host_receives_what_the_strategy_says() -> None:
    case = sized_case("7", 1)
    assert MeasuredTransfer(case, SEND_RECV).received_bytes() == {1: 4 * MIB, 2: 4 * MIB}
    for strategy in (GATHERED, GLOBAL_GATHERED, BROADCAST):
        assert MeasuredTransfer(case, strategy).received_bytes() == {1: MIB, 2: MIB}


def test_a_result_is_read_from_its_line() -> None:
    found = measured(MeasuredTransfer(sized_case("7", 1), BROADCAST), 1.0)
    assert from_line(line_of(found)) == found
    assert from_line("another line") is None
    assert found.counted_ratio == pytest.approx(1.01, rel=1e-3)
    plain = [
        Measured(
            case="1 x 1",
            way=PLAIN,
            seconds=(seconds,),
            received_bytes=(0, MIB),
            sent_bytes=(MIB, 0),
            counted_received=(0, MIB),
            counted_sent=(MIB, 0),
        )
        for seconds in (2.0, 1.0)
    ]
    assert plain_rate(plain, 1) == MIB


def test_the_page_says_what_holds() -> None:
    # At 1 MB/s: twice 1 MiB one after the other, and once.
    rows = rows_of({GATHERED: 2.1, BROADCAST: 1.1})
    assert order(rows).num_pairs == 1
    assert order(rows).wrong == ()
    text = page_of(rows).text()
    assert "Of 1 pairs of ways of one case that differ by more than 10 % in simulation, 1" in text
    assert "to the byte, in 2 of 2 transfers" in text
    assert "Interfaces count at most 1.0 % more" in text
    assert "| 7 | broadcast | 1.1 s |" in text


def test_the_page_says_what_does_not_hold() -> None:
    rows = rows_of({GATHERED: 1.0, BROADCAST: 1.1}, surplus=4)
    assert len(order(rows).wrong) == 1
    lines = "\n".join(page_of(rows).findings())
    assert "Case 7 comes in the other order: broadcast 1.1 s" in lines
    assert "to the byte, in 0 of 2 transfers" in lines


def test_an_unknown_case_is_refused() -> None:
    found = CliRunner().invoke(main, ["alpacomm-measured", "--cases", "1,12"])
    assert found.exit_code == 2
    assert "'12' is none of 1, 2, 3" in found.output


@pytest.mark.slow
@pytest.mark.skipif(REASON is not None, reason=str(REASON))
def test_hosts_are_sent_the_bytes_of_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    # The processes import `evaluation` from where they start.
    monkeypatch.chdir(ROOT)
    strategies = (GLOBAL_GATHERED, BROADCAST)
    said: list[str] = []
    with Testbed(hosts=hosts_needed(["7"]), rate="400mbit") as testbed:
        found = measure(testbed, ["7"], strategies, 1, 1, said.append)
    assert len(found) == len(said) == 2 + len(strategies)
    rows = compared(transfers(["7"], 1, strategies), found, plain_rate(found, 1))
    assert [row.transfer.strategy for row in rows] == list(strategies)
    for row in rows:
        assert row.is_payload_planned
        assert 1.0 < row.measured.counted_ratio < 1.06
