"""Four machines with names of their own, as a cluster has them, made of network namespaces.

Each has its address and its name, and `ssh` leads from one to another. Files are those of this
machine, and environment variables go with `ssh`, as where all machines start with the same ones.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from evaluation.hosts.leftovers import FILES
from evaluation.hosts.testbed import Testbed

NAMES = ("node001", "node002", "node003", "node004")
NODE_LIST = "node[001-004]"  # As Slurm writes it.
# XLA:CPU needs two threads a device in a job, one here, and reads it when Python starts.
_THREADS = {"NPROC": "2"}
_SSH = """\
#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
name=$1; shift
case $name in
{places}
*) echo "ssh: no machine is named $name" >&2; exit 255 ;;
esac
run='hostname "$1" && shift && exec sh -c "$*"'
exec ip netns exec $place unshare --uts sh -c "$run" sh $name "$@"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """Machines that are there while the block of `nodes` runs.

    Attributes:
        testbed: The network between them.
        folder: What all of them work in.
        environment: The variables of each process on them.
    """

    testbed: Testbed
    folder: Path
    environment: Mapping[str, str]

    def start(
        self, number: int, command: str, variables: Mapping[str, str], output: IO[str]
    ) -> None:
        """Start a command of a shell on a machine; it is killed when the block ends.

        Args:
            number: The machine, from 0.
            command: What the shell reads.
            variables: More environment variables.
            output: Where what it prints goes.
        """
        argv = ["ssh", NAMES[number], f"cd {self.folder} && exec {command}"]
        self.testbed.start(number, argv, {**self.environment, **variables}, output)

    def run(self, command: str, variables: Mapping[str, str], limit_s: float = 300.0) -> str:
        """Run a command of a shell on the first machine, and return what it printed.

        Args:
            command: What the shell reads.
            variables: More environment variables.
            limit_s: After so long all of it is killed.

        Raises:
            TestbedError: it failed, or took longer.
        """
        argv = ["ssh", NAMES[0], f"cd {self.folder} && {command}"]
        return self.testbed.run(0, argv, {**self.environment, **variables}, limit_s)


@contextmanager
def nodes(folder: Path) -> Iterator[Nodes]:
    """Make the machines, with this Python's programs in front of all others.

    Args:
        folder: What they work in; programs that stand in for others lie in its folder `bin`.
    """
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    with Testbed(hosts=len(NAMES), rate="1gbit") as testbed:
        lines = [f"{testbed.address(n)} {name}\n" for n, name in enumerate(NAMES)]
        for number in range(len(NAMES)):
            with (FILES / testbed.namespace(number) / "hosts").open("a", encoding="utf-8") as file:
                file.writelines(lines)
        places = (f"{name}) place={testbed.namespace(n)} ;;" for n, name in enumerate(NAMES))
        write_program(programs / "ssh", _SSH.format(places="\n".join(places)))
        path = os.pathsep.join([str(programs), shell_path()])
        environment = {**shell_environment(), "PATH": path, **_THREADS}
        yield Nodes(testbed=testbed, folder=folder, environment=environment)


def write_program(path: Path, text: str) -> None:
    """Write a program that can be called by its name."""
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


def shell_path() -> str:
    """Return where a shell looks for programs: first among those of this Python."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])


def shell_environment() -> dict[str, str]:
    """Return the variables of a shell that finds this Python, this Meshwise, and CPU devices."""
    return {
        **{k: v for k, v in os.environ.items() if k != "JAX_NUM_CPU_DEVICES"},
        "PATH": shell_path(),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "JAX_PLATFORMS": "cpu",
    }
