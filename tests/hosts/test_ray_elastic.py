"""Ray Train goes on with the hosts that are left, and with those that come."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from evaluation.hosts.testbed import Testbed

import meshwise as mw
from doubles.ray_jobs import EXAMPLES, RayNodes, environment, needs_ray, needs_testbed
from hosts.test_ray import losses_of, losses_of_one_process
from meshwise.errors import LaunchError

NUM_HOSTS = 4
LIMIT_S = 540.0
_DONE = re.compile(r"pid=(\d+).* done (\d+) loss \S+ hosts (\d+)")


class Run(NamedTuple):
    """A training that goes on, on nodes of Ray."""

    nodes: RayNodes
    process: subprocess.Popen[str]
    lines: list[str]

    def until(self, hosts: int, *, steps: int = 0, other_than: int = 0) -> tuple[int, int]:
        """Read what it prints until so many hosts have done so many steps.

        Args:
            hosts: How many.
            steps: How many at least.
            other_than: A process 0 that does not count.

        Returns:
            The step that was done, and process 0 as the system knows it.
        """
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            found = _DONE.search(line)
            if found is None:
                continue
            process, step, num_hosts = map(int, found.groups())
            if num_hosts == hosts and step >= steps and process != other_than:
                return step, process
        raise AssertionError("".join(self.lines)[-20_000:])

    def losses(self) -> list[float]:
        """Return the losses of all steps, when it has ended."""
        rest, _ = self.process.communicate()
        printed = "".join(self.lines) + rest
        assert self.process.returncode == 0, printed[-20_000:]
        return losses_of(printed)


@contextmanager
def training(folder: Path, *, least: int, steps: int) -> Iterator[Run]:
    """Train on four hosts."""
    with environment() as variables, Testbed(hosts=NUM_HOSTS, rate="1gbit") as testbed:
        nodes = RayNodes(testbed, variables)
        for host in range(NUM_HOSTS):
            nodes.start(host)
        of_hosts = ["--hosts", str(least), str(NUM_HOSTS), "--devices-per-host=1"]
        of_steps = [f"--steps={steps}", "--save-every=5", "--look-every=10"]
        process = testbed.start(
            0,
            [
                *(sys.executable, str(EXAMPLES / "ray_elastic.py"), f"--folder={folder}"),
                *(*of_hosts, *of_steps),
            ],
            {
                **variables,
                "RAY_ADDRESS": nodes.address,
                # Ray would wait 60 s for the host that is gone.
                "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "20",
            },
            subprocess.PIPE,
        )
        limit = threading.Timer(LIMIT_S, process.kill)
        limit.start()
        try:
            yield Run(nodes, process, [])
        finally:
            limit.cancel()


@needs_ray
@needs_testbed
@pytest.mark.slow
def test_a_node_dies_and_another_comes(tmp_path: Path) -> None:
    with training(tmp_path, least=3, steps=60) as run:
        run.until(4, steps=7)
        run.nodes.kill(3)
        assert run.until(3)[0] >= 6  # Steps up to the checkpoint are not done again.
        run.nodes.start(3)
        run.until(4)
        losses = run.losses()
    assert losses == pytest.approx(losses_of_one_process(60, dropout=0.1), rel=1e-5)


@needs_ray
@needs_testbed
@pytest.mark.slow
def test_a_process_that_stands_still_is_replaced(tmp_path: Path) -> None:
    with training(tmp_path, least=4, steps=12) as run:
        _, first = run.until(4, steps=7)
        (stopped,) = run.nodes.processes(2, "RayTrainWorker")
        os.kill(stopped, signal.SIGSTOP)
        assert run.until(4, other_than=first)[0] >= 6
        assert stopped not in run.nodes.processes(2)
        losses = run.losses()
    assert losses == pytest.approx(losses_of_one_process(12, dropout=0.1), rel=1e-5)


@needs_ray
@pytest.mark.parametrize("hosts", [(0, 2), (3, 2), ("1", 2)])
def test_the_least_is_not_more_than_the_most(hosts: tuple[int, int]) -> None:
    with pytest.raises(LaunchError, match="must be the least, of at least 1, and the most"):
        mw.ray.trainer(lambda: None, hosts=hosts, devices_per_host=1)
