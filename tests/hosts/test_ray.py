"""Ray as a launcher: a driver with actors, and Ray Train, mean the step of one process."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from evaluation.hosts.testbed import Testbed

import meshwise as mw
from doubles.ray_jobs import (
    EXAMPLES,
    MARK,
    RayNodes,
    environment,
    needs_ray,
    needs_testbed,
    processes_with,
)
from meshwise.errors import LaunchError
from meshwise.hosts.ray.host_request import HostRequest, ray_module
from meshwise.train.corpus import load_corpus
from meshwise.train.options import TrainOptions
from meshwise.train.step import state_creator, train_step_of

STEPS = 3


def losses_of(text: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"^step \d+ loss (\S+)$", text, re.MULTILINE)]


def losses_of_one_process(num_steps: int = STEPS, dropout: float = 0.0) -> list[float]:
    options = TrainOptions(out=Path("unused"), dropout=dropout)
    corpus = load_corpus(None, seq=options.seq)
    state = jax.jit(state_creator(options))(jax.random.key(options.seed))
    step, losses = jax.jit(train_step_of(options)), []
    for number in range(num_steps):
        batch = corpus.batch_at(number, batch=options.batch, seq=options.seq, seed=options.seed)
        state, loss = step(state, batch)
        losses.append(float(loss))
    return losses


def run(variables: dict[str, str], *command: str, folder: Path | None = None) -> str:
    ended = subprocess.run(
        [sys.executable, *command],
        env=variables,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    return ended.stdout


@needs_ray
def test_a_driver_has_handles_of_what_its_hosts_compute() -> None:
    with environment() as variables:
        assert "passed" in run(variables, "-m", "hosts.ray_steps")


@needs_ray
@pytest.mark.slow
@pytest.mark.parametrize("script", ["ray_saves", "ray_restarts", "ray_too_few"])
def test_scripts_of_drivers(script: str, tmp_path: Path) -> None:
    with environment() as variables:
        assert "passed" in run(variables, "-m", f"hosts.{script}", str(tmp_path))


@needs_ray
@pytest.mark.slow
def test_the_main_job_runs_on_hosts_of_ray(tmp_path: Path) -> None:
    job = ("train", "--hosts", "2", "--ray", "--devices", "4", "--steps", str(STEPS))
    with environment() as variables:
        printed = run(variables, "-m", "meshwise", *job, folder=tmp_path)
    summary = json.loads((tmp_path / "runs" / "gpt" / "summary.json").read_text())
    assert summary["first_loss"] == pytest.approx(losses_of_one_process()[0], rel=1e-5)
    assert f"done after {STEPS} steps" in printed


def test_hosts_without_devices_are_refused() -> None:
    with pytest.raises(LaunchError, match="resources_per_host={'GPU': 8}"):
        mw.Cluster.ray(hosts=2)
    with pytest.raises(LaunchError, match="hosts=0 must be a whole number"):
        mw.Cluster.ray(hosts=0, devices_per_host=1)


def test_without_ray_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(LaunchError, match=r"pip install 'meshwise\[ray\]'"):
        ray_module()
    with pytest.raises(LaunchError, match=r"pip install 'meshwise\[ray\]'"):
        mw.ray.trainer(lambda: None, hosts=2, devices_per_host=2)


def test_hosts_get_the_variables_of_their_devices() -> None:
    cpu = HostRequest(num_hosts=2, devices_per_host=4, env_vars={"A": "b"})
    assert cpu.strategy == "SPREAD"
    assert cpu.variables() == {
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": "4",
        "NPROC": "8",
        "A": "b",
    }
    gpu = HostRequest(num_hosts=2, resources_per_host={"GPU": 8, "CPU": 32})
    assert gpu.strategy == "STRICT_SPREAD"
    assert gpu.variables() == {"JAX_PLATFORMS": "cuda,cpu"}
    assert gpu.resources == {"CPU": 32, "GPU": 8}


@needs_ray
@pytest.mark.slow
@pytest.mark.parametrize("end", ["Ctrl-C", "a host dies"])
def test_nothing_is_left(end: str) -> None:
    with environment() as variables:
        process = subprocess.Popen(
            [sys.executable, EXAMPLES / "ray_driver.py", "--steps", "100000"],
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        assert process.stdout is not None
        printed: list[str] = []
        for line in process.stdout:
            printed.append(line)
            if line.startswith("step 3 "):
                break
        assert printed[-1].startswith("step 3 "), "".join(printed)
        hosts = processes_with(variables[MARK], "ray::Host")
        assert len(hosts) == 2
        if end == "Ctrl-C":
            os.kill(process.pid, signal.SIGINT)
        else:
            os.kill(min(hosts), signal.SIGKILL)
        rest, _ = process.communicate(timeout=90)
        assert process.returncode != 0
        assert ("KeyboardInterrupt" if end == "Ctrl-C" else "has ended") in rest


@needs_ray
@needs_testbed
@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "stages"),
    [("ray_driver", []), ("ray_driver", ["--stages", "2"]), ("ray_trainer", [])],
)
def test_two_nodes_train_as_one_process(script: str, stages: list[str]) -> None:
    want = losses_of_one_process()
    with environment() as variables, Testbed(hosts=2) as testbed:
        nodes = RayNodes(testbed, variables)
        for host in range(2):
            nodes.start(host)
        printed = testbed.run(
            0,
            [sys.executable, str(EXAMPLES / f"{script}.py"), "--steps", str(STEPS), *stages],
            {**variables, "RAY_ADDRESS": nodes.address},
            timeout_s=400,
        )
        assert losses_of(printed) == pytest.approx(want, rel=1e-5), printed
        assert not processes_with(variables[MARK], "ray::Host")
