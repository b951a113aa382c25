"""Slurm on the machines of `nodes`: the real one, and one that stands in for it."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from doubles.nodes import NAMES, NODE_LIST, Nodes, shell_path, write_program

# Runs the file `job.sh` as a batch script on all machines, again as often as it asks for that, and
# returns what it printed.
Batch = Callable[[], str]

_PROGRAMS = ("munged", "sbatch", "sinfo", "slurmctld", "slurmd")
_START_S = 30.0
# A requeued job starts when its credentials have expired (`cred_expire`, 2 minutes by default).
_CONFIGURATION = """\
ClusterName=test
SlurmctldHost={first}
SlurmUser=root
AuthInfo=cred_expire=5,socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/linear
SlurmdParameters=config_overrides
KillWait=5
NodeName={nodes} CPUs=16
PartitionName=all Nodes=ALL Default=YES
"""


def missing_slurm() -> str | None:
    """Return why Slurm itself cannot run here, as the reason of a skipped test; None if it can."""
    missing = [name for name in _PROGRAMS if shutil.which(name, path=_path()) is None]
    if missing:
        return f"{', '.join(missing)} not found: apt install slurmctld slurmd munge"
    return None


@contextmanager
def slurm(nodes: Nodes) -> Iterator[Batch]:
    """Start Slurm's daemons on all machines; they end with these."""
    folder = nodes.folder / "slurm"
    folder.mkdir()
    for name in ("state", *(f"spool-{name}" for name in NAMES)):
        (folder / name).mkdir()
    configuration = _CONFIGURATION.format(first=NAMES[0], folder=folder, nodes=NODE_LIST)
    (folder / "slurm.conf").write_text(configuration, encoding="utf-8")
    # Where none is named, slurmd looks for the one of the machine.
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n", encoding="utf-8")
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    variables = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": f"{folder.parent}/bin:{_path()}"}
    files = " ".join(
        f"--{name}={folder}/munge.{ending}"
        for name, ending in (
            ("key-file", "key"), ("socket", "socket"), ("pid-file", "pid"),
            ("log-file", "log"), ("seed-file", "seed"),
        )
    )  # fmt: skip
    with (folder / "daemons.log").open("w", encoding="utf-8") as log:
        nodes.start(0, f"munged --foreground --force {files}", variables, log)
        nodes.start(0, "slurmctld -D", variables, log)
        for number in range(len(NAMES)):
            nodes.start(number, "slurmd -D", variables, log)
        deadline = time.monotonic() + _START_S
        while nodes.run("sinfo -h -o '%D %t' || true", variables) != f"{len(NAMES)} idle\n":
            assert time.monotonic() < deadline, (folder / "daemons.log").read_text("utf-8")
            time.sleep(0.2)

        def batch() -> str:
            of_all = f"--nodes={len(NAMES)} --ntasks-per-node=1 --output=job.out --open-mode=append"
            # `sbatch --wait` looks twice a minute.
            ended = 'while [ "$(squeue -h -j $id)" ]; do sleep 0.5; done; cat job.out'
            succeeded = "scontrol show job $id | grep -q ' ExitCode=0:0'"
            run = f"id=$(sbatch --parsable {of_all} job.sh) && {ended} && {succeeded}"
            return nodes.run(run, variables)

        yield batch


@contextmanager
def slurm_stand_in(nodes: Nodes) -> Iterator[Batch]:
    """Let programs of `bin` stand in for `srun`, and for `scontrol requeue`."""
    programs, mark = nodes.folder / "bin", nodes.folder / "requeue"
    srun = Path(__file__).with_name("srun.py")
    write_program(programs / "srun", f'#!/bin/sh\nexec {sys.executable} {srun} "$@"\n')
    asked = f'[ "$*" = "requeue $SLURM_JOB_ID" ] && touch {mark}'
    write_program(programs / "scontrol", f"#!/bin/sh\n{asked}\n")

    def batch() -> str:
        job = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": ",".join(NAMES)}
        printed = nodes.run("bash job.sh", job)
        restarts = 0
        while mark.exists():
            mark.unlink()
            restarts += 1
            job["SLURM_RESTART_COUNT"] = str(restarts)
            printed += nodes.run("bash job.sh", job)
        return printed

    yield batch


def _path() -> str:
    """Return where programs are looked for; Debian has daemons where only root looks."""
    return os.pathsep.join([shell_path(), "/usr/sbin"])
