"""Every code block of the README and of the pages that teach runs, and prints what is shown."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

import pytest

import meshwise as mw
from doubles.page_blocks import ROOT, Reader, blocks_of, same_output
from meshwise.errors import ClusterError
from meshwise.targets.packages import installed_compiler

# Pages of decisions and measurements have none that a reader types.
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/*/*.md"))
    if path.parent.name not in ("decisions", "measurements", "paper", "alpacomm")
    and blocks_of(path.read_text(encoding="utf-8"))
)
# Pages that take longer than a few seconds, and those that need a compiler or many processes.
SLOW = {
    f"docs/tutorials/{name}.md"
    for name in ("from_maxtext", "hosts", "sixty_four_gpus", "train", "verify", "what_if")
}
# Their Python blocks are parts of programs of many processes: `docs/tutorials/hosts.md` has a whole
# one, and `tests/hosts` runs what each part does.
PARTS = ("docs/data.md", "docs/hosts.md")
# Commands, by their first words, and where they are tried.
ELSEWHERE = {"pip install": "tests/house/test_wheel.py"}


@pytest.mark.usefixtures("quick_compile")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(page, marks=[pytest.mark.slow] if page in SLOW else [])
        for page in PAGES
        if page not in PARTS
    ],
)
def test_the_blocks_run_and_print_what_is_shown(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    path = ROOT / name
    page = path.read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    if name.endswith("verify.md"):
        monkeypatch.syspath_prepend(ROOT / "build" / "compilers")
        try:
            installed_compiler("cuda")
        except ClusterError as error:
            pytest.skip(str(error))
    reader = Reader(tmp_path, lambda command: command.startswith(tuple(ELSEWHERE)))
    wrong: list[str] = []
    for block, shown, came in reader.outputs(page):
        if same_output(shown, came):
            continue
        if request.config.getoption("--update-goldens"):
            text = path.read_text(encoding="utf-8")
            assert text.count(shown) == 1
            path.write_text(text.replace(shown, came.rstrip("\n") + "\n"), encoding="utf-8")
        rows = difflib.unified_diff(shown.splitlines(), came.splitlines(), "shown", "came", n=0)
        wrong.append("\n".join([f"{name}, block at line {block.line}", *rows]))
    assert not wrong, "\n\n".join(wrong)


def test_commands_that_are_tried_elsewhere_are() -> None:
    assert all((ROOT / test).is_file() for test in ELSEWHERE.values())


@pytest.mark.parametrize("name", PARTS)
def test_parts_of_programs_are_python_with_names_that_exist(name: str) -> None:
    blocks = blocks_of((ROOT / name).read_text(encoding="utf-8"))
    for block in blocks:
        compile(block.text, name, "exec")
        named = re.findall(r"\bmw\.(\w+)", block.text)
        assert set(named) <= set(dir(mw)), block
    assert blocks
