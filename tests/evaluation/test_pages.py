"""Tables, pictures and pages from results made by hand."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
from click.testing import CliRunner
from evaluation.__main__ import main
from evaluation.paper.figures import FIGURES
from evaluation.paper.methods import METHODS, OURS
from evaluation.paper.pages import figure_page, index_page, write_pages
from evaluation.paper.result import Result
from evaluation.paper.run import result_key
from evaluation.paper.settings import SETTINGS
from evaluation.paper.store import Store
from evaluation.paper.tables import by_name, defects, margins, rate_table

from doubles.toy import result

FIG7A = FIGURES["fig7a"]
RESULTS = by_name(
    (
        result("gpt-1.3b", OURS, 2.0),
        result("gpt-1.3b", "Megatron-LM", 3.0),
        result("gpt-1.3b", "inter-op only", math.inf),
    )
)


def test_results_read_back_equal() -> None:
    for one in RESULTS.values():
        assert Result.from_json(one.to_json()) == one


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "meshwise-bench-result"}', "1"])
def test_what_is_no_result_is_told(text: str) -> None:
    with pytest.raises(ValueError, match=r"Expecting|format|result"):
        Result.from_json(text)


def test_other_files_are_passed_over(tmp_path: Path) -> None:
    store = Store(tmp_path)
    saved = result("gpt-1.3b", OURS, 2.0)
    store.save(saved)
    (tmp_path / "other.json").write_text("{}")
    assert store.all() == (saved,)


def test_rates_by_the_papers_count() -> None:
    lines = rate_table(FIG7A, RESULTS).splitlines()
    row = next(line for line in lines if "gpt-1.3b" in line)
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    found = dict(zip(("setting", "GPUs", *FIG7A.methods), cells, strict=True))
    assert found["GPUs"] == "4"
    assert found[OURS] == "1.5 (2 s)"
    assert found["Megatron-LM"] == "1 (3 s)"
    assert found["inter-op only"] == "no plan"
    assert found["Alpa"] == "not run"
    assert margins(FIG7A, RESULTS) == [("gpt-1.3b", "Megatron-LM", 1.5)]


def test_a_method_that_beats_ours_is_named() -> None:
    assert defects(RESULTS) == []
    worse = RESULTS | by_name([result("gpt-1.3b", OURS, 4.0)])
    (line,) = defects(worse)
    assert line.startswith("gpt-1.3b: Megatron-LM 3 s")
    assert "ours 4 s" in line
    assert line in index_page(worse)
    # What was asked less of is not compared.
    fewer = worse | by_name([result("gpt-1.3b", OURS, 4.0, microbatches=(8,))])
    assert defects(fewer) == []
    assert "gpt-1.3b (B 8)" in index_page(fewer)


def test_pages_say_that_nothing_is_measured_and_stay_tables() -> None:
    for figure in FIGURES.values():
        page = figure_page(figure, RESULTS)
        assert "**simulated**" in page
        assert figure.published[0] in page
        for line in page.splitlines():
            assert not line.startswith("|") or line.endswith("|")
    assert "layer 1 does / not fit" in figure_page(FIG7A, RESULTS)
    index = index_page(RESULTS)
    assert "3 of 30" in index
    assert "other code than that of these pages: somewhere" in index


def test_ways_to_send_stand_beside_what_gathering_saves() -> None:
    ways = (("signal", 1.0), ("send/recv", 3.0), ("local all-gather", 2.0))
    found = result("wide-resnet-4b", OURS, 2.0)
    answer = dataclasses.replace(found.answer, by_way=ways)
    kept = Result.from_json(dataclasses.replace(found, answer=answer).to_json())
    page = figure_page(FIGURES["fig11"], by_name([kept]))
    assert "| wide-resnet-4b | 16 | Meshwise | 1 x (1,2) as 2x1 | 1 s | 3 s | 2 s | 1.500 |" in page
    assert "| wide-resnet-4b | 16 | Meshwise (3 stages) | not run |" in page
    one = figure_page(FIGURES["fig11"], by_name([found]))
    assert "| wide-resnet-4b | 16 | Meshwise | one stage |" in one


def test_figures_know_their_settings_and_methods() -> None:
    for figure in FIGURES.values():
        assert {s.name for s in figure.settings} <= set(SETTINGS)
        assert set(figure.methods) <= set(METHODS)


def test_equal_results_give_equal_pictures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    files = [
        write_pages(tmp_path / name, RESULTS.values(), [FIG7A], pictures=True) for name in "ab"
    ]
    assert [f.name for f in files[0]] == ["fig7a.md", "fig7a.svg", "fig7a.png", "README.md"]
    for one, two in zip(*files, strict=True):
        assert one.read_bytes() == two.read_bytes()
    assert "<svg" in files[0][1].read_text()
    assert "(fig7a.svg)" in files[0][0].read_text()


def test_the_command_resumes_and_writes_pages(tmp_path: Path) -> None:
    out, pages = tmp_path / "out", tmp_path / "pages"
    key = result_key(SETTINGS["gpt-350m"], OURS)
    Store(out).save(result("gpt-350m", OURS, 2.0, key=key))
    called = CliRunner().invoke(
        main,
        ["paper", "--only", "fig7a", "--settings", "gpt-350m", "--methods", OURS,
         "--out", str(out), "--pages", str(pages), "--no-plots"],
    )  # fmt: skip
    assert called.exit_code == 0, called.output
    assert "gpt-350m: Meshwise: known" in called.stderr
    assert called.stdout.startswith("gpt-350m, Meshwise: 2 s simulated, 1.5 PFLOP/s, 1 GiB, B 8")
    assert "1.5 (2 s)" in (pages / "fig7a.md").read_text()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--only", "fig99"), "no 'fig99'; there are fig7a"),
        (("--settings", "gpt-350m,gpt-1t"), "no 'gpt-1t'"),
        (("--methods", "magic"), "no 'magic'; there are Meshwise"),
        (("--microbatches", "0"), "--microbatches"),
    ],
)
def test_wrong_names_are_told(args: tuple[str, ...], message: str) -> None:
    called = CliRunner().invoke(main, ["paper", *args])
    assert called.exit_code == 2
    assert message in called.output
