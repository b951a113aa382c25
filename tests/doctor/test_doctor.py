"""`meshwise doctor`: each check on what is sound and on what is broken."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from click.testing import CliRunner

from meshwise.cli import main
from meshwise.doctor.finding import Finding, findings_text, is_sound
from meshwise.doctor.jax_probe import ProbeAnswer, ask, check_devices, check_virtual
from meshwise.doctor.machine import (
    check_accelerator,
    check_complete,
    check_cores,
    check_folder,
    check_jax_cache,
    check_kernels,
    check_memory,
    check_records,
)
from meshwise.doctor.packages import check_packages, check_python, fits
from meshwise.system.result_files import ResultFiles

doctor_module = importlib.import_module("meshwise.cli.doctor")


@pytest.mark.parametrize(
    ("installed", "bounds", "wanted"),
    [
        ("0.10.2", ">=0.10.2,<0.12", True),
        ("0.12", ">=0.10.2,<0.12", False),
        ("0.9.9", ">=0.10.2,<0.12", False),
        ("0.11.0.dev3", ">=0.10.2,<0.12", True),
        ("0.12.0", "<0.12", False),
        ("2.0", ">=2.0.0", True),
        ("0.10.2", "<=0.10.2,>=0.10.2", True),
        ("0.10.3", "<=0.10.2", False),
        ("1", "", True),
    ],
)
def test_versions_fit_their_bounds(installed: str, bounds: str, wanted: bool):
    assert fits(installed, bounds) is wanted


def test_old_python_is_broken():
    assert check_python((3, 10, 1)).status == "broken"
    assert "3.11" in check_python((3, 10, 1)).remedy
    assert check_python().status == "ok"


def test_packages_are_missing_old_or_right():
    there = {"jax": "0.9.0", "numpy": "2.1.0", "old": "1.0"}

    def version_of(name: str) -> str:
        if name not in there:
            raise PackageNotFoundError(name)
        return there[name]

    requirements = (
        "jax<0.12,>=0.10.2", "numpy>=2.0", "rich>=13.7", 'ray>=2.40; extra == "ray"',
        'optax>=0.2.6; extra == "train"', 'pytest>=8; extra == "dev"',
        'jax[cuda12]>=0.10.2; extra == "gpu"',
    )  # fmt: skip
    found = {finding.what: finding for finding in check_packages(requirements, version_of)}
    assert {name: finding.status for name, finding in found.items()} == {
        "jax": "broken", "numpy": "ok", "rich": "broken", "ray": "note", "optax": "note",
    }  # fmt: skip
    assert found["jax"].remedy == 'pip install "jax<0.12,>=0.10.2"'
    assert found["rich"].found == "not installed"
    assert 'pip install "meshwise[ray]"' in found["ray"].remedy
    assert 'pip install "meshwise[train]"' in found["optax"].remedy
    there["ray"] = "2.0"
    (old,) = check_packages(requirements[3:4], version_of)
    assert (old.status, old.found) == ("note", "2.0, but >=2.40 is needed; optional")


def test_packages_of_this_environment_are_right():
    found = {finding.what: finding.status for finding in check_packages()}
    assert found["jax"] == found["jaxlib"] == found["click"] == "ok"


def test_packages_of_other_extras_are_not_asked_for():
    def version_of(name: str) -> str:
        raise PackageNotFoundError(name)

    assert check_packages(["cuda-compiler>=1; extra == 'target-gpu'"], version_of) == []


def test_memory_is_read_from_linux(tmp_path: Path):
    info = tmp_path / "meminfo"
    info.write_text("MemTotal: 16777216 kB\nMemFree: 1 kB\nMemAvailable: 8388608 kB\n")
    assert check_memory(info).found == "8 GiB free of 16 GiB"
    info.write_text("MemTotal: 16777216 kB\nMemAvailable: 1048576 kB\n")
    assert check_memory(info).status == "note"
    assert "end other programs" in check_memory(info).remedy
    info.write_text("nothing of use\n")
    assert check_memory(info).found == "this system does not say"
    assert check_memory(tmp_path / "none").status == "note"


def test_a_gpu_that_jax_does_not_use_is_a_note(tmp_path: Path):
    assert check_accelerator("cpu", tmp_path, lambda name: None) is None
    unused = check_accelerator("cpu", tmp_path, lambda name: f"/usr/bin/{name}")
    assert unused is not None
    assert "meshwise[gpu]" in unused.remedy
    (tmp_path / "nvidia0").touch()
    assert check_accelerator(None, tmp_path, lambda name: None) is not None
    assert check_accelerator("gpu", tmp_path, lambda name: None) is None


def test_caches_and_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert check_folder(tmp_path, free_bytes=2**40).status == "ok"
    assert check_folder(tmp_path, free_bytes=2**20).status == "note"
    assert check_complete(is_complete=True).status == "ok"
    assert "compile_all_kernels" in check_complete(is_complete=False).remedy
    assert check_cores().found.isdecimal()
    folder = importlib.import_module("meshwise.kernels.folder")
    monkeypatch.setattr(folder, "kernel_folder", lambda: None)
    (finding,) = check_kernels()
    assert (finding.status, finding.what) == ("broken", "solver cache")
    assert "XDG_CACHE_HOME" in finding.remedy

    def fail() -> None:
        raise OSError("llvmlite is broken")

    monkeypatch.setattr(folder, "kernel_folder", fail)
    (finding,) = check_kernels()
    assert finding.status == "broken"
    assert "OSError: llvmlite is broken" in finding.found


def test_the_plan_cache_has_a_place_and_a_size(tmp_path: Path) -> None:
    finding = check_records(tmp_path)
    assert (finding.what, finding.status) == ("plan cache", "ok")
    assert finding.found.startswith(f"{tmp_path}, 0 ")
    ResultFiles(tmp_path, 2**20).write("key", b"")
    assert check_records(tmp_path).found != finding.found
    assert check_records(tmp_path / "none").status == "ok"


def test_the_cache_of_jax(tmp_path: Path):
    name = "JAX_COMPILATION_CACHE_DIR"
    unset = check_jax_cache({})
    assert unset.status == "ok"
    assert "keeps the programs of its steps in" in unset.found
    assert check_jax_cache({name: str(tmp_path / "a" / "b")}).status == "ok"
    file = tmp_path / "file"
    file.touch()
    assert check_jax_cache({name: str(file / "a")}).status == "note"


# -- JAX, in a process of its own ----------------------------------------------------------------


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_probe_that_fails_says_why():
    crash = ask(command=python("import os; os.abort()"))
    assert crash.data is None
    assert "exit code -6" in crash.failure
    error = ask(command=python("raise SystemError('driver is too old')"))
    assert "driver is too old" in error.failure
    assert (
        "no answer within 0 s"
        in ask(command=python("import time; time.sleep(60)"), limit_s=0.1).failure
    )
    assert "cannot start /not/there" in ask(command=["/not/there"]).failure
    assert "said nothing" in ask(command=python("print('hello')")).failure
    assert ask(command=python("print('note'); print('{\"a\": 1}')")).data == {"a": 1}


def test_what_a_probe_says_becomes_a_finding():
    data = {"platform": "gpu", "kinds": {"H100": 8}, "memory_bytes": 64 * 2**30}
    assert check_devices(ProbeAnswer(data=data)).found == "gpu: 8 x H100, 64 GiB each"
    assert "8 virtual CPU devices is right" in check_virtual(ProbeAnswer(data=data)).found
    failed = ProbeAnswer(data=None, failure="exit code 1: no device")
    for check in (check_devices, check_virtual):
        finding = check(failed)
        assert finding.status == "broken"
        assert finding.found == failed.failure
        assert finding.remedy


def test_the_real_probe_sees_virtual_devices():
    answer = ask(["--virtual", "3"], environment=dict(os.environ) | {"JAX_PLATFORMS": "cpu"})
    assert answer.data is not None, answer.failure
    assert answer.data["kinds"] == {"cpu": 3}


def test_the_real_probe_says_that_a_platform_is_not_there():
    answer = ask(environment=dict(os.environ) | {"JAX_PLATFORMS": "nonsense"})
    assert answer.data is None
    assert "nonsense" in answer.failure


# -- the command ---------------------------------------------------------------------------------

SOUND = (Finding(what="Python", status="ok", found="3.12"),)
BROKEN = (*SOUND, Finding(what="jax", status="broken", found="0.1", remedy="pip install jax"))


@pytest.mark.parametrize(("findings", "code"), [(SOUND, 0), (BROKEN, 1)])
def test_the_exit_code_says_whether_something_is_broken(
    findings: tuple[Finding, ...], code: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(doctor_module, "checkup", lambda _: findings)
    shown = CliRunner().invoke(main, ["doctor"])
    assert shown.exit_code == code
    assert "ok      Python" in shown.stdout
    assert ("-> pip install jax" in shown.stdout) is (code == 1)
    data = json.loads(CliRunner().invoke(main, ["doctor", "--json"]).stdout)
    assert data["ok"] is (code == 0)
    assert data["findings"][0] == {"what": "Python", "status": "ok", "found": "3.12", "remedy": ""}


def test_notes_break_nothing():
    note = Finding(what="ray", status="note", found="not installed", remedy="install it")
    assert is_sound((*SOUND, note))
    assert findings_text((*SOUND, note)).endswith("all is well")
    assert findings_text(BROKEN).endswith("1 of 2 broken")


def test_the_doctor_answers_where_jax_cannot_be_imported(tmp_path: Path):
    (tmp_path / "jax.py").write_text("raise ImportError('jaxlib is of another version')\n")
    environment: Mapping[str, str] = dict(os.environ) | {
        "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    }
    code = "from meshwise.cli import main; main()"
    done = subprocess.run(
        [*python(code), "doctor", "--json"],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    broken = {f["what"]: f for f in json.loads(done.stdout)["findings"] if f["status"] == "broken"}
    assert "jaxlib is of another version" in broken["JAX devices"]["found"]
