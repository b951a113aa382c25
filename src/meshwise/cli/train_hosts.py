"""`meshwise train --hosts`: the same command in several processes, of this machine or of Ray."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Sequence

import click
import jax

from meshwise.hosts.host_process import Stream
from meshwise.hosts.launch import JobRequest, launch
from meshwise.hosts.member import START, JobMember
from meshwise.hosts.ray.host_request import HostRequest
from meshwise.hosts.ray.ray_hosts import RayHosts

# Time to end the step and to save the state.
_GRACE_S = 120.0
# How long Ray may take to find room.
_ROOM_S = 60.0
# How late the lines that a process prints may come to the driver.
_LINES_S = 2.0


class ArgumentsKept(click.Command):
    """A command that remembers what stands behind its name."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments, and keep them."""
        ctx.meta["arguments"] = tuple(args)
        return super().parse_args(ctx, args)


def is_in_job() -> bool:
    """Return whether `meshwise launch`, or `--hosts`, started this process."""
    return JobMember.from_variables(os.environ) is not None


def name_of_start() -> str | None:
    """Return the name of the job, which restarts do not change; None if nobody restarts it."""
    return os.environ.get(START) or os.environ.get("SLURM_JOB_ID")


def join_job() -> None:
    """Join the other processes of the job; before anything asks JAX for a device."""
    if jax.distributed.is_initialized():  # Ray's processes have joined.
        return
    jax.distributed.initialize(cluster_detection_method="meshwise")


def run_on_hosts(
    arguments: Sequence[str], num_hosts: int, num_devices: int, max_restarts: int
) -> int:
    """Run `meshwise train` in several processes.

    Lines of process 0 come as they are; it speaks for all.

    Args:
        arguments: What stands behind `meshwise train`.
        num_hosts: The number of processes.
        num_devices: Virtual CPU devices of all of them together.
        max_restarts: How often all are started again after a failure.

    Returns:
        The exit code.

    Raises:
        click.UsageError: the devices cannot be shared out evenly.
        LaunchError: the processes cannot be started.
    """
    request = JobRequest(
        program=("-m", "meshwise", "train", *arguments),
        num_hosts=num_hosts,
        devices_per_host=_share(num_devices, num_hosts),
        grace_s=_GRACE_S,
        max_restarts=max_restarts,
    )
    lock = threading.Lock()

    def write(number: int, stream: Stream, line: bytes) -> None:
        out = (sys.stdout if stream == "stdout" else sys.stderr).buffer
        with lock:
            out.write(line + b"\n" if number == 0 else b"[host %d] %s\n" % (number, line))
            out.flush()

    end = launch(request, write=write, report=lambda text: click.echo(f"[launch] {text}", err=True))
    return end.exit_code


def run_on_ray(arguments: Sequence[str], num_hosts: int, num_devices: int) -> int:
    """Run `meshwise train` in a process on each of some hosts of Ray, in this folder.

    Args:
        arguments: What stands behind `meshwise train`.
        num_hosts: The number of hosts.
        num_devices: Virtual CPU devices of all of them together.

    Returns:
        The exit code.

    Raises:
        click.UsageError: the devices cannot be shared out evenly.
        LaunchError: Ray is not installed, or has no room.
    """
    share = _share(num_devices, num_hosts)
    request = HostRequest(num_hosts=num_hosts, devices_per_host=share)
    hosts = RayHosts(request, patience_s=_ROOM_S)
    try:
        return hosts.run(_train_here, (os.getcwd(), tuple(arguments)), {})
    finally:
        hosts.shutdown()


def _train_here(folder: str, arguments: tuple[str, ...]) -> int:
    """Run `meshwise train` in this process of a job, and return the exit code."""
    from meshwise.cli import main

    os.chdir(folder)
    try:
        main.main(["train", *arguments], "meshwise", standalone_mode=False)
        return 0
    except SystemExit as end:  # It would end the process, which others may still need.
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        time.sleep(_LINES_S)


def _share(num_devices: int, num_hosts: int) -> int:
    """Return the devices of one host."""
    if num_devices % num_hosts or not num_devices:
        raise click.UsageError(
            f"--devices {num_devices} are not shared evenly by --hosts {num_hosts}; give a multiple"
        )
    return num_devices // num_hosts
