"""`meshwise calibrate` as a user calls it."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from meshwise.calibrate import target
from meshwise.cli import main
from meshwise.cluster.description.profile import read_profile
from meshwise.errors import ClusterError
from meshwise.runtime.device_memory import CompiledBytes
from meshwise.system.atomic_file import write_atomically
from meshwise.targets import packages
from meshwise.targets.child import CompileAnswer
from meshwise.targets.packages import InstalledCompiler

calibrate_module = importlib.import_module("meshwise.cli.calibrate")


def call(*args: str) -> Result:
    return CliRunner().invoke(main, ["calibrate", *args])


def test_a_profile_is_written_shown_and_printed(tmp_path: Path):
    path = tmp_path / "profile.json"
    shown = call("--quick", "--devices", "8", "--out", str(path))
    assert shown.exit_code == 0, shown.output
    assert "predicted over measured time of collectives" in shown.stdout
    assert f"meshwise train --cluster {path}" in shown.stderr
    assert "all-reduce of 4 KiB over 8" in shown.stderr
    profile = read_profile(path)
    assert profile.host.num_devices == 8
    assert os.listdir(tmp_path) == ["profile.json"]
    printed = call("--quick", "--json")
    assert json.loads(printed.stdout)["format"] == "meshwise-profile"


def interrupted(*args: Any, **kwargs: Any) -> Any:
    raise KeyboardInterrupt


def test_ctrl_c_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(calibrate_module, "measure", interrupted)
    result = call("--out", str(tmp_path / "profile.json"))
    assert result.exit_code == 130
    assert "no profile was written" in result.stderr
    assert os.listdir(tmp_path) == []


def test_ctrl_c_while_measuring_ends_the_process(tmp_path: Path):
    path = tmp_path / "profile.json"
    path.write_text("an old profile")
    # A shell in the background ignores SIGINT, and children inherit that.
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from meshwise.cli import main; main()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, "calibrate", "--out", str(path)],
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("[1/")
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
        assert process.wait() == 130, said
    assert "Traceback" not in said
    assert path.read_text() == "an old profile"
    assert os.listdir(tmp_path) == ["profile.json"]


def test_what_cannot_be_kept_is_refused_before_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("measured")

    monkeypatch.setattr(calibrate_module, "measure", refuse)
    result = call("--out", str(tmp_path / "no" / "profile.json"))
    assert result.exit_code == 1
    assert f"no folder {tmp_path / 'no'}; make it first" in result.stderr
    assert call("--out", str(tmp_path)).exit_code == 2


def test_an_error_is_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise ClusterError("no devices to measure")

    monkeypatch.setattr(calibrate_module, "measure", fail)
    result = call("--out", str(tmp_path / "profile.json"))
    assert result.exit_code == 1
    assert result.stderr == "Error: no devices to measure\n"


def test_help_teaches():
    shown = call("--help").stdout
    assert "meshwise train --cluster profile.json" in shown
    assert "--devices 0" in shown


def test_a_file_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "file"
    write_atomically(path, "one")
    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, "two")
    assert path.read_text() == "one"
    assert os.listdir(tmp_path) == ["file"]


def test_an_unknown_target_is_refused(tmp_path: Path):
    result = call("--target", "h1", "--out", str(tmp_path / "profile.json"))
    assert result.exit_code == 1
    assert "no target 'h1'; there are v100" in result.stderr
    assert os.listdir(tmp_path) == []


def test_a_missing_compiler_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch):
    package = dataclasses.replace(packages.PACKAGES["tpu"][0], name="no-such-compiler")
    monkeypatch.setattr(packages, "PACKAGES", {"tpu": (package,)})
    result = call("--target", "v5e")
    assert result.exit_code == 1
    assert 'not installed: `pip install "' in result.stderr
    assert 'pip install "meshwise[target-tpu]"' in result.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--target", "v5e", "--devices", "4"), "--target measures no devices"),
        (("--target", "v5e", "--memory", "16GB"), "--target measures no devices"),
        (("--cluster", "1x dgx-h100"), "--cluster goes with --target"),
    ],
)
def test_options_that_exclude_each_other(args: tuple[str, ...], said: str):
    result = call(*args)
    assert result.exit_code == 2
    assert said in result.stderr


def test_a_profile_of_a_target_is_written_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    memory = CompiledBytes(argument_bytes=1, output_bytes=1, alias_bytes=0, temporary_bytes=0)
    text = (
        "HloModule m\n\nENTRY %main (a: f32[]) -> f32[] {\n  %a = f32[] parameter(0)\n"
        '  ROOT %n = f32[] negate(%a), backend_config={"window_config":{"estimated_cycles":"3000"}}'
        "\n}\n"
    )

    def compile_programs(_: Any, programs: Any, listener: Any) -> list[CompileAnswer]:
        answer = CompileAnswer(memory=memory, text=text, seconds=1.0)
        for program in programs:
            listener(program.name, answer)
        return [answer] * len(programs)

    installed = InstalledCompiler(name="libtpu 9.9", path="")
    monkeypatch.setattr(target, "installed_compiler", lambda _: installed)
    monkeypatch.setattr(target, "compile_programs", compile_programs)
    path = tmp_path / "v5e.json"
    shown = call("--target", "v5e", "--quick", "--out", str(path))
    assert shown.exit_code == 0, shown.output
    assert "[4/4, " in shown.stderr
    assert "memory, 1 MiB: 2 us" in shown.stderr
    assert shown.stdout.startswith("tpu-v5e by libtpu 9.9 (tpu), ")
    assert "link      not measured: Google Cloud TPU v5e" in shown.stdout
    profile = read_profile(path)
    assert profile.device_kind == "TPU v5e"
    assert profile.host.device.memory_bytes_per_s == pytest.approx(2**20 / 2e-6)


def test_a_cluster_that_is_none_is_refused():
    result = call("--target", "v5e", "--cluster", "1x tpu-v5f")
    assert result.exit_code == 1
    assert "no host 'tpu-v5f' in the catalog" in result.stderr


def test_hosts_refuse_what_they_do_not_take(tmp_path: Path):
    for given in (["--json"], ["--devices", "2"], ["--cluster", "v5e-4"]):
        result = call("--hosts", *given)
        assert result.exit_code == 2
        assert f"leave {given[0]} out" in result.stderr
    result = call("--hosts", "--out", str(tmp_path / "cluster.json"))
    assert "must end with .toml" in result.stderr
