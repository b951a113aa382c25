"""Every code block of the README and of the pages that teach runs, and prints what is shown."""

from __future__ import annotations

import difflib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from doubles.page_blocks import ROOT, Reader, blocks_of, same_output
from doubles.ray_jobs import environment as ray_environment
from doubles.ray_jobs import needs_ray
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
# The blocks of these pages go on with a program of several processes.
WHOLE = "docs/tutorials/hosts.md"
IN_JOBS = ("docs/data.md", "docs/hosts.md")
# Commands, by their first words, and where they are tried.
ELSEWHERE = {"pip install": "tests/house/test_wheel.py"}


@pytest.mark.usefixtures("quick_compile")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(page, marks=[pytest.mark.slow] if page in SLOW else [])
        for page in PAGES
        if page not in IN_JOBS
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


def of_sections(name: str, *, about_ray: bool) -> str:
    """Return the Python blocks of a page in one program, which says at its end that they ran."""
    page = (ROOT / name).read_text(encoding="utf-8")
    sections = re.split(r"^(?=## )", page, flags=re.M)
    asked = [s for s in sections if s.startswith("## Ray\n") == about_ray]
    return "\n".join([*(b.text for s in asked for b in blocks_of(s)), "print('all have run')"])


def definitions() -> str:
    """Return what the pages take from the whole program: all before its step is made."""
    text = blocks_of((ROOT / WHOLE).read_text(encoding="utf-8"))[0].text
    return text.partition("\nstep = ")[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", IN_JOBS)
def test_the_blocks_run_in_a_job(name: str, tmp_path: Path) -> None:
    start, joins = definitions(), "jax.distributed.initialize()"
    text = of_sections(name, about_ray=False)
    if joins in text:
        first, _, text = text.partition(joins)
        start = start.replace(joins, f"{first}{joins}")
    (tmp_path / "page.py").write_text(f"{start}\n{text}", encoding="utf-8")
    launch = (sys.executable, "-m", "meshwise", "launch", "--hosts", "2", "--devices-per-host", "2")
    ran = subprocess.run(
        [*launch, "page.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    for host in range(2):
        assert f"[host {host}] all have run" in ran.stdout


@needs_ray
@pytest.mark.slow
def test_the_blocks_about_ray_run(tmp_path: Path) -> None:
    start = re.sub(r"^jax\.distributed\..*$", "", definitions(), flags=re.M)
    text = of_sections("docs/hosts.md", about_ray=True)
    (tmp_path / "page.py").write_text(f"{start}\n{text}", encoding="utf-8")
    with ray_environment() as environment:
        ran = subprocess.run(
            [sys.executable, "page.py"], cwd=tmp_path, env=environment, capture_output=True,
            text=True, timeout=300, check=False,
        )  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-6000:]
    lines = ran.stdout.splitlines()
    assert "all have run" in lines
    of_trainer, of_driver = (float(line) for line in lines if re.fullmatch(r"\d\.\d+", line))
    assert of_trainer == pytest.approx(of_driver, rel=1e-5)
