"""Every code block of the README and of the pages that teach runs, and prints what is shown."""

from __future__ import annotations

import difflib
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from doubles.page_blocks import ROOT, Reader, blocks_of, pages_that_teach, same_output
from doubles.pinned_jax import IS_PINNED_JAX
from doubles.ray_jobs import environment as ray_environment
from doubles.ray_jobs import needs_ray
from meshwise.errors import ClusterError
from meshwise.targets.packages import installed_compiler

BLOCKS = pages_that_teach()
# How blocks run, by their language: here, or in `test_shell_blocks`.
HERE, SHELL = {"console", "python", "text", "yaml"}, {"sh"}
# Blocks that nobody runs: they are pictures.
PICTURES = {("ARCHITECTURE.md", "text")}
# Pages that take longer than a few seconds, and those that need a compiler or many processes.
SLOW = {
    f"docs/tutorials/{name}.md"
    for name in ("from_maxtext", "hosts", "sixty_four_gpus", "train", "verify", "what_if")
}
# The blocks of these pages go on with a program of several processes.
WHOLE = "docs/tutorials/hosts.md"
IN_JOBS = ("docs/data.md", "docs/hosts.md")
PAGES = [
    name
    for name, blocks in BLOCKS.items()
    if name not in IN_JOBS
    and any(b.kind not in SHELL and (name, b.kind) not in PICTURES for b in blocks)
]
# Commands, by their first words, and where they are tried.
ELSEWHERE = {"pip install": "tests/house/test_wheel.py"}


@pytest.mark.usefixtures("quick_compile")
@pytest.mark.parametrize(
    "name",
    [pytest.param(page, marks=[pytest.mark.slow] if page in SLOW else []) for page in PAGES],
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
        if same_output(shown, came) or not IS_PINNED_JAX:
            continue
        if request.config.getoption("--update-goldens"):
            text = path.read_text(encoding="utf-8")
            assert text.count(shown) == 1
            path.write_text(text.replace(shown, came.rstrip("\n") + "\n"), encoding="utf-8")
        rows = difflib.unified_diff(shown.splitlines(), came.splitlines(), "shown", "came", n=0)
        wrong.append("\n".join([f"{name}, block at line {block.line}", *rows]))
    assert not wrong, "\n\n".join(wrong)


def test_no_block_of_a_page_is_left_out() -> None:
    left: list[str] = []
    for name, blocks in BLOCKS.items():
        fences = re.findall(r"^[ >]*(?:```|~~~)", (ROOT / name).read_text(encoding="utf-8"), re.M)
        assert len(fences) == 2 * len(blocks), name
        run = SHELL | ({"python"} if name in IN_JOBS else HERE)
        left += [
            f"{name}, line {block.line}: {block.kind or 'no language'}"
            for block in blocks
            if block.kind not in run
            and not (block.title and name in PAGES)
            and (name, block.kind) not in PICTURES
        ]
    assert left == []


def test_the_network_policy_lets_the_pods_of_a_job_reach_only_each_other() -> None:
    # The Kubernetes client for Python, 37.0.2, reads it and writes it the same (2026-11-27).
    (block,) = (b for b in BLOCKS["docs/security.md"] if b.kind == "yaml")
    policy = yaml.safe_load(block.text)
    assert (policy["apiVersion"], policy["kind"]) == ("networking.k8s.io/v1", "NetworkPolicy")
    spec = policy["spec"]
    assert spec["policyTypes"] == ["Ingress"]
    assert spec["ingress"] == [{"from": [{"podSelector": spec["podSelector"]}]}]
    assert spec["podSelector"]["matchLabels"]


def test_commands_that_are_tried_elsewhere_are() -> None:
    assert all((ROOT / test).is_file() for test in ELSEWHERE.values())


def of_sections(name: str, *, about_ray: bool) -> str:
    """Return the Python blocks of a page in one program, which says at its end that they ran."""
    page = (ROOT / name).read_text(encoding="utf-8")
    sections = re.split(r"^(?=## )", page, flags=re.M)
    asked = [s for s in sections if s.startswith("## Ray\n") == about_ray]
    texts = (b.text for s in asked for b in blocks_of(s) if b.kind == "python")
    return "\n".join([*texts, "print('all have run')"])


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
    # As the page says, one stands in place of the other: four hosts with a device each train here.
    accelerators = 'resources_per_host={"GPU": 8}'
    assert text.count(accelerators) == 1
    text = text.replace(accelerators, "devices_per_host=1")
    start = f"import ray\nray.init(num_cpus=4)\n{start}"
    text += "\nprint(elastic.fit().return_value)\n"
    (tmp_path / "page.py").write_text(f"{start}\n{text}", encoding="utf-8")
    with ray_environment() as environment:
        ran = subprocess.run(
            [sys.executable, "page.py"], cwd=tmp_path, env=environment, capture_output=True,
            text=True, timeout=300, check=False,
        )  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-6000:]
    lines = ran.stdout.splitlines()
    assert "all have run" in lines
    losses = (float(line) for line in lines if re.fullmatch(r"\d\.\d+", line))
    of_trainer, of_driver, of_elastic = losses
    assert of_trainer == pytest.approx(of_driver, rel=1e-5)
    assert of_elastic < of_trainer  # After 100 steps in place of 20.
