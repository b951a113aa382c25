"""`meshwise launch`: a script in many processes on this machine, as if it ran on many hosts."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import click

from meshwise.hosts.host_process import Stream
from meshwise.hosts.launch import JobEnd, JobRequest, end_text
from meshwise.hosts.launch import launch as launch_job

EXAMPLES = """
\b
Examples:
  meshwise launch --hosts 4 train.py
      Four processes with one virtual CPU device each; train.py calls
      jax.distributed.initialize() without arguments.
\b
  meshwise launch --hosts 2 --devices-per-host 4 train.py --steps 10
      What follows the script is for the script.
\b
  meshwise launch --hosts 2 -m my_package.train --steps 10
      A module, as with `python -m`.
\b
  meshwise launch --hosts 2 -m meshwise doctor --hosts
      Check names, ports, versions and links of the processes first.
\b
  meshwise launch --hosts 2 --max-restarts 3 -m meshwise train --save-every 10
      When a process dies, all are started again, and go on from the last checkpoint.
\b
  srun --ntasks-per-node 1 python train.py
      On a real cluster JAX finds Slurm and Open MPI by itself: no launcher is needed.
"""
_GREATEST_PORT = 2**16 - 1


@click.command(
    epilog=EXAMPLES,
    # What follows PROGRAM is for it.
    context_settings={"allow_interspersed_args": False},
)
@click.option(
    "--hosts",
    "num_hosts",
    type=click.IntRange(1),
    required=True,
    metavar="N",
    help="Processes to start; each stands for a host.",
)
@click.option(
    "--devices-per-host",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    envvar="JAX_NUM_CPU_DEVICES",
    show_envvar=True,
    metavar="N",
    help="Virtual CPU devices of each process.",
)
@click.option(
    "--port",
    type=click.IntRange(1, _GREATEST_PORT),
    metavar="PORT",
    help="Port of the coordinator. Default: a free one.",
)
@click.option(
    "--grace",
    "grace_s",
    type=click.FloatRange(0),
    default=5.0,
    show_default=True,
    metavar="S",
    help="Seconds that processes have to end by themselves before they are killed.",
)
@click.option(
    "--max-restarts",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    metavar="N",
    help="Start all processes again after a failure, at most N times. A program that resumes from "
    "its last checkpoint, as `meshwise train` does, goes on.",
)
@click.option("-m", "is_module", is_flag=True, help="PROGRAM is a module, as for `python -m`.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print how the processes ended as JSON on standard output, all else on standard error.",
)
@click.argument("program", metavar="PROGRAM")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def launch(
    *,
    num_hosts: int,
    devices_per_host: int,
    port: int | None,
    grace_s: float,
    max_restarts: int,
    is_module: bool,
    as_json: bool,
    program: str,
    arguments: tuple[str, ...],
) -> None:
    """Run PROGRAM in many processes on this machine, as if each were a host.

    The processes use virtual CPU devices. Each line of their output begins with the number of its
    process. When one fails, or at Ctrl-C, all end; the exit code is that of the first that failed.
    """
    if not is_module and not Path(program).is_file():
        raise click.BadParameter(f"there is no file {program}", param_hint="PROGRAM")
    request = JobRequest(
        program=(*(["-m"] if is_module else []), program, *arguments),
        num_hosts=num_hosts,
        devices_per_host=devices_per_host,
        port=port,
        grace_s=grace_s,
        max_restarts=max_restarts,
    )
    lines = _Lines(only_stderr=as_json)
    end = launch_job(request, write=lines.write, report=lines.report)
    if as_json:
        click.echo(json.dumps(_document(end)))
    sys.exit(end.exit_code)


def _document(end: JobEnd) -> dict[str, object]:
    hosts = [{"exit_code": code, "text": end_text(code)} for code in end.exit_codes]
    return {"exit_code": end.exit_code, "reason": end.reason, "hosts": hosts}


class _Lines:
    """Writes lines of many threads, each whole and at once."""

    def __init__(self, *, only_stderr: bool) -> None:
        self._lock = threading.Lock()
        self._only_stderr = only_stderr

    def write(self, number: int, stream: Stream, line: bytes) -> None:
        """Write a line of a process.

        Raises:
            OSError: nobody reads it any more.
        """
        use_stderr = self._only_stderr or stream == "stderr"
        out = (sys.stderr if use_stderr else sys.stdout).buffer
        with self._lock:
            out.write(b"[host %d] %s\n" % (number, line))
            out.flush()

    def report(self, text: str) -> None:
        """Write what the launcher has to say, even where nobody may read it any more."""
        with self._lock:
            try:
                click.echo(f"[launch] {text}", err=True)
            except OSError:
                return
