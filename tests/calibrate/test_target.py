"""A profile from what a compiler says; the compiler is a double here (see `tests/targets`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from meshwise.calibrate import target as module
from meshwise.calibrate.measure import QUICK_SIZES
from meshwise.calibrate.target import TARGET_SIZES, calibrate_target, host_of_target
from meshwise.cluster.catalog import HOSTS
from meshwise.cluster.description.profile import Profile, read_profile
from meshwise.cluster.spec import ClusterSpec
from meshwise.errors import ClusterError, ProgramError
from meshwise.runtime.device_memory import CompiledBytes
from meshwise.targets.catalog import compile_target
from meshwise.targets.child import CompileAnswer
from meshwise.targets.compiler import TargetProgram
from meshwise.targets.packages import InstalledCompiler

MEMORY = CompiledBytes(argument_bytes=1, output_bytes=1, alias_bytes=0, temporary_bytes=0)
# Microseconds by name of the program, where it is not 2.
TIMES = {"float32 product of 64 x 64": 1.0, "memory, 1 MiB": 0.5}


def text(us: float) -> str:
    """A program of one instruction with the costs of both kinds of compilers."""
    cycles = round(us * 1500)
    config = (
        f'{{"window_config":{{"estimated_cycles":"{cycles}"}},'
        f'"reification_cost":[{{"exec_time_us":{us},"name":"sol"}}]}}'
    )
    return (
        "HloModule m\n\nENTRY %main (a: f32[]) -> f32[] {\n  %a = f32[] parameter(0)\n"
        f"  ROOT %n = f32[] negate(%a), backend_config={config}\n}}\n"
    )


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[TargetProgram]]:
    """Makes a compiler that says `TIMES` with changes; returns what it will be asked."""
    installed = InstalledCompiler(name="a-compiler 1.0", path="")
    monkeypatch.setattr(module, "installed_compiler", lambda _: installed)

    def make(**changes: float) -> list[TargetProgram]:
        asked: list[TargetProgram] = []

        def compile_programs(_: Any, programs: Any, listener: Any) -> list[CompileAnswer]:
            answers = [
                CompileAnswer(
                    memory=MEMORY, text=text({**TIMES, **changes}.get(p.name, 2.0)), seconds=1.0
                )
                for p in programs
            ]
            for program, answer in zip(programs, answers, strict=True):
                asked.append(program)
                listener(program.name, answer)
            return answers

        monkeypatch.setattr(module, "compile_programs", compile_programs)
        return asked

    return make


def profile_of(name: str) -> Profile:
    target = compile_target(name)
    return calibrate_target(target, host_of_target(target), command="c", sizes=QUICK_SIZES)


def test_a_profile_of_a_tpu_has_the_compilers_numbers(
    compiler: Callable[..., list[TargetProgram]], tmp_path: Path
) -> None:
    asked = compiler(**{"memory, 1 MiB": 2.0})
    found = profile_of("v5e")
    assert [p.name for p in asked] == [
        "float32 product of 64 x 64",
        "float32 product of 128 x 128",
        "bfloat16 product of 128 x 128",
        "memory, 1 MiB",
    ]
    described, device = HOSTS["tpu-v5e"], found.host.device
    assert device.rate("float32") == pytest.approx(2 * 128**3 / 2e-6)
    assert device.dense_s(2 * 64**3, "float32") == pytest.approx(1e-6)
    assert device.memory_bytes_per_s == pytest.approx(2**20 / 2e-6)
    assert "a-compiler 1.0" in device.source
    assert ("a-compiler", "1.0") in found.versions
    # What a compiler for one device cannot say.
    assert found.collectives == ()
    assert (found.host.link, found.host.nic) == (described.link, described.nic)
    assert device.name == described.device.name
    path = tmp_path / "v5e.json"
    path.write_text(found.to_json())
    assert read_profile(path) == found
    assert ClusterSpec.named(str(path)).host == found.host


def test_bandwidth_as_its_peak_says_nothing_of_what_is_reached(
    compiler: Callable[..., list[TargetProgram]],
) -> None:
    peak = HOSTS["dgx-h100"].peak
    assert peak is not None
    compiler(**{"memory, 1 MiB": 2**20 / peak.memory_bytes_per_s * 1e6})
    found = profile_of("h100").host.device
    assert found.memory_bytes_per_s == HOSTS["dgx-h100"].device.memory_bytes_per_s
    assert "memory as described" in found.source
    # No times of this dtype.
    assert found.rate("float16") == HOSTS["dgx-h100"].device.rate("float16")
    assert "float16" in found.source


def test_only_xla_gpu_is_told_to_write_costs(
    compiler: Callable[..., list[TargetProgram]],
) -> None:
    for name, is_told in (("h100", True), ("v5e", False)):
        asked = compiler(**{"memory, 1 MiB": 5.0})
        profile_of(name)
        assert {"xla_gpu_collect_cost_model_stats" in p.options for p in asked} == {is_told}


def test_a_compiler_that_says_nothing_is_an_error(
    compiler: Callable[..., list[TargetProgram]],
) -> None:
    compiler(**{"memory, 1 MiB": 0.0})
    with pytest.raises(ClusterError, match="no costs for v5e: the compiler says nothing of memory"):
        profile_of("v5e")


def test_a_device_that_the_compilers_tables_lack_is_an_error(
    compiler: Callable[..., list[TargetProgram]], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler()

    def refuse(*_: Any, **__: Any) -> None:
        raise ProgramError("NOT_FOUND: Cannot find key: sm_80")

    monkeypatch.setattr(module, "compile_programs", refuse)
    with pytest.raises(ClusterError, match="no costs for a100-80: .*sm_80; plan with the numbers"):
        profile_of("a100-80")


def test_a_target_without_a_host_names_the_remedy() -> None:
    with pytest.raises(ClusterError, match=r"calibrate --target b200 --cluster cluster\.toml"):
        host_of_target(compile_target("b200"))


def test_a_cluster_of_other_devices_is_refused() -> None:
    cluster = ClusterSpec.virtual("2x dgx-h100")
    assert host_of_target(compile_target("h100"), cluster) == HOSTS["dgx-h100"]
    with pytest.raises(ClusterError, match="2x dgx-h100 has 'H100-SXM5-80GB' devices, and target"):
        host_of_target(compile_target("v5e"), cluster)


def test_products_in_float16_are_not_asked_for() -> None:
    assert {dtype for dtype, _ in TARGET_SIZES.matmul} == {"float32", "bfloat16"}
    assert dataclasses.replace(TARGET_SIZES, matmul=()).num_matmuls == 0
