"""`meshwise solve`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from assignment.problems import optimum, random_document, random_instance
from meshwise.assignment.files.reader import read_instance
from meshwise.assignment.instance import is_solution
from meshwise.cli import main

pytestmark = pytest.mark.usefixtures("compiled_kernels")


def _written(tmp_path: Path, document: object) -> Path:
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(document))
    return path


def test_the_last_line_is_the_choice(tmp_path: Path) -> None:
    path = _written(tmp_path, random_document(2, forbid=False))
    found = CliRunner().invoke(main, ["solve", str(path), "--time-limit", "600"])
    assert found.exit_code == 0
    choice = json.loads(found.stdout.splitlines()[-1])
    assert is_solution(read_instance(path), choice)
    assert "optimal: cost" in found.stderr


def test_json_says_what_was_proved(tmp_path: Path) -> None:
    path = _written(tmp_path, random_document(2, forbid=False))
    found = CliRunner().invoke(
        main, ["solve", str(path), "--json", "--seed", "3", "--time-limit", "600"]
    )
    data = json.loads(found.stdout)
    assert data["status"] == "optimal"
    assert data["cost"] == data["bound"] == optimum(random_instance(2, forbid=False))
    assert data["seed"] == 3


def test_no_solution_is_an_empty_list(tmp_path: Path) -> None:
    document = random_document(2)
    nodes = document["problem"]["nodes"]
    nodes["usages"] = [[9 for _ in row] for row in nodes["usages"]]
    nodes["intervals"] = [[0, 1] for _ in nodes["intervals"]]
    document["problem"]["usage_limit"] = 8
    path = _written(tmp_path, document)
    found = CliRunner().invoke(main, ["solve", str(path), "--time-limit", "600"])
    assert found.exit_code == 0
    assert found.stdout.splitlines()[-1] == "[]"
    assert "infeasible: no solution" in found.stderr


def test_a_wrong_file_names_its_field(tmp_path: Path) -> None:
    document = random_document(2)
    del document["problem"]["nodes"]["usages"]
    path = _written(tmp_path, document)
    found = CliRunner().invoke(main, ["solve", str(path)])
    assert found.exit_code == 1
    assert found.stderr == f"Error: {path}: problem.nodes.usages is missing\n"


def test_a_limit_that_ends_while_the_file_is_read_gives_an_empty_list(tmp_path: Path) -> None:
    path = _written(tmp_path, random_document(2))
    found = CliRunner().invoke(main, ["solve", str(path), "--time-limit", "1e-9"])
    assert found.exit_code == 0
    assert found.stdout == "[]\n"
    assert "time was over while the file was read" in found.stderr


@pytest.mark.parametrize("all_read", [False, True])
def test_an_early_interrupt_gives_a_list(tmp_path: Path, all_read: bool) -> None:
    """While the file is read nothing is known yet; more interrupts change nothing."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    process = subprocess.Popen(
        [sys.executable, "-c", "from meshwise.cli import main; main()", "solve", str(path),
         "--time-limit", "300"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    # Opens when the command does.
    with path.open("w") as pipe:
        if all_read:
            json.dump(random_document(1, num_nodes=3000, tight=0.3, forbid=False), pipe)
        else:
            time.sleep(0.2)
            process.send_signal(signal.SIGINT)
            process.wait(60)
    if all_read:
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert isinstance(json.loads(out.splitlines()[-1]), list)


def test_an_interrupt_gives_the_best_so_far(tmp_path: Path) -> None:
    path = _written(tmp_path, random_document(1, num_nodes=20_000, tight=0.3, forbid=False))
    process = subprocess.Popen(
        [sys.executable, "-c", "from meshwise.cli import main; main()", "solve", str(path),
         "--time-limit", "300"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if "nodes left" in line and "none yet" not in line:
            break
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=600)
    assert process.returncode == 0
    assert is_solution(read_instance(path), json.loads(out.splitlines()[-1]))
