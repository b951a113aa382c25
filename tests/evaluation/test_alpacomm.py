"""AlpaComm's cases: what the pages say is what was planned and simulated."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from evaluation.__main__ import main
from evaluation.alpacomm.cases import CASES, ONE_TO_MANY, random_case
from evaluation.alpacomm.micro import run_case, run_random
from evaluation.alpacomm.pages import PUBLISHED, cases_page, series_page

from meshwise.resharding.cross_mesh.cross_mesh_plan import BALANCED, NAIVE
from meshwise.resharding.cross_mesh.strategies import BROADCAST, STRATEGIES


def test_cases_are_those_of_the_facts():
    assert [case.name for case in CASES] == list(PUBLISHED)
    assert {case.num_bytes for case in CASES} == {1 << 31, 3072 * 1024 * 170 * 4}
    assert {case.num_bytes for case in ONE_TO_MANY} == {1 << 30}
    assert random_case(7) == random_case(7) != random_case(8)


def test_the_pages_show_what_was_found():
    # Of four devices of one host to two hosts, where a broadcast is ahead whatever the order.
    result = run_case(CASES[6])
    assert result.num_boxes == 4
    assert result.speedup(NAIVE) == result.speedup(BALANCED) == pytest.approx(1.12, rel=0.01)
    for name in STRATEGIES:
        assert result.simulated_s[name] == pytest.approx(result.planned_s[name], rel=0.02)
    assert min(result.simulated_s.values()) == result.simulated_s[BROADCAST]
    found = run_random(5)
    page = cases_page([result], found)
    assert "| 7 | 1 x 4 | 2 x 4 | S1 R R to R R R | 4 | 1.12 | 1.12 | 2.5 |" in page
    assert "5 cases of up to 4 hosts" in page
    assert sum(found.winners.values()) == 5
    assert all(ratio >= 1 - 1e-12 for ratio in (*found.ratios, *found.worse.values()))
    assert "**simulated**" in page
    assert "cases.svg" not in page
    assert "| 3 x 2 | 5.154 s (5.154 s) |" in series_page([run_case(ONE_TO_MANY[5])])


@pytest.mark.slow
def test_the_command_writes_its_pages(tmp_path):
    found = CliRunner().invoke(main, ["alpacomm", "--pages", str(tmp_path / "a")])
    assert found.exit_code == 0, found.output
    names = {file.name for file in (tmp_path / "a").iterdir()}
    assert names == {
        *("cases.md", "cases.svg", "cases.png"),
        *("one_to_many.md", "one_to_many.svg", "one_to_many.png"),
    }
