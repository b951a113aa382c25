"""`meshwise train --hosts`: the same command in several processes of this machine."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence

import click
import jax

from meshwise.hosts.host_process import Stream
from meshwise.hosts.launch import JobRequest, launch
from meshwise.hosts.member import JobMember

# Time to end the step and to save the state.
_GRACE_S = 120.0


class ArgumentsKept(click.Command):
    """A command that remembers what stands behind its name."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments, and keep them."""
        ctx.meta["arguments"] = tuple(args)
        return super().parse_args(ctx, args)


def is_in_job() -> bool:
    """Return whether `meshwise launch`, or `--hosts`, started this process."""
    return JobMember.from_variables(os.environ) is not None


def join_job() -> None:
    """Join the other processes of the job; before anything asks JAX for a device."""
    jax.distributed.initialize(cluster_detection_method="meshwise")


def run_on_hosts(arguments: Sequence[str], num_hosts: int, num_devices: int) -> int:
    """Run `meshwise train` in several processes.

    Lines of process 0 come as they are; it speaks for all.

    Args:
        arguments: What stands behind `meshwise train`.
        num_hosts: The number of processes.
        num_devices: Virtual CPU devices of all of them together.

    Returns:
        The exit code.

    Raises:
        click.UsageError: the devices cannot be shared out evenly.
        LaunchError: the processes cannot be started.
    """
    if num_devices % num_hosts or not num_devices:
        raise click.UsageError(
            f"--devices {num_devices} are not shared evenly by --hosts {num_hosts}; give a multiple"
        )
    request = JobRequest(
        program=("-m", "meshwise", "train", *arguments),
        num_hosts=num_hosts,
        devices_per_host=num_devices // num_hosts,
        grace_s=_GRACE_S,
    )
    lock = threading.Lock()

    def write(number: int, stream: Stream, line: bytes) -> None:
        out = (sys.stdout if stream == "stdout" else sys.stderr).buffer
        with lock:
            out.write(line + b"\n" if number == 0 else b"[host %d] %s\n" % (number, line))
            out.flush()

    end = launch(request, write=write, report=lambda text: click.echo(f"[launch] {text}", err=True))
    return end.exit_code
