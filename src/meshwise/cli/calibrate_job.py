"""`meshwise calibrate --hosts`: the hosts of a job and their network, as a cluster file."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Collection
from pathlib import Path

import click
import jax

from meshwise.api.distributed_cluster import distributed_cluster
from meshwise.calibrate.hosts import CalibratedHosts, calibrate_hosts
from meshwise.calibrate.measure import Sizes
from meshwise.cli.outputs import check_writable
from meshwise.cluster.description.toml_text import cluster_toml
from meshwise.runtime.job.job import Job, current_job, told_to_all
from meshwise.system.atomic_file import write_atomically
from meshwise.system.exit_codes import INTERRUPTED
from meshwise.units import bytes_text, flop_text, seconds_text

# Options that a job does not take, by the names of their parameters.
_OTHERS = {
    "--devices": "--devices",
    "--target": "--target",
    "--cluster": "--cluster",
    "--as_json": "--json",
}


def _check(out: Path | None, given: Collection[str]) -> None:
    others = [name for option, name in _OTHERS.items() if option in given]
    if others:
        raise click.UsageError(f"--hosts measures what the job has: leave {', '.join(others)} out")
    if out is not None and out.suffix != ".toml":
        raise click.UsageError(
            f"--hosts writes a cluster file: --out must end with .toml, got {out}"
        )


def _joined() -> Job:
    """Join the other processes."""
    try:
        jax.distributed.initialize()
    except (RuntimeError, ValueError) as error:
        raise click.ClickException(f"JAX cannot join a job: {error}") from error
    job = current_job()
    if job is None:
        raise click.ClickException(
            "this process is in no job of several: run it under `meshwise launch`, `srun` or "
            "`mpirun`, or calibrate without --hosts"
        )
    return job


def _check_job(job: Job, out: Path | None) -> None:
    """Refuse, in every process, before minutes are spent."""

    def check_out() -> str:
        if out is not None:
            check_writable(out)
        return ""

    job.from_first("the check of --out", check_out)
    if jax.devices()[0].platform == "cpu":
        distributed_cluster()  # It refuses processes that would wait for ever.


def calibrate_job(
    out: Path | None, memory: int | None, sizes: Sizes | None, given: Collection[str]
) -> None:
    """Measure with the other processes of the job; process 0 speaks for all.

    Args:
        out: Where the cluster file goes.
        memory: Bytes of one device, where JAX does not say it.
        sizes: What to measure; by default what suits the platform.
        given: The options on the command line.

    Raises:
        click.ClickException: what went wrong.
    """
    _check(out, given)
    start = time.monotonic()
    job = _joined()

    def say(text: str) -> None:
        if not job.process:
            click.echo(f"[{time.monotonic() - start:.0f} s] {text}", err=True)

    try:
        with told_to_all(job):
            _check_job(job, out)
            found = calibrate_hosts(
                job,
                command=shlex.join(["meshwise", *sys.argv[1:]]),
                sizes=sizes,
                memory_bytes=memory,
                report=lambda done, total, text: say(f"{done}/{total} {text}"),
                say=say,
            )
        if job.process:
            return
        text = _text(found)
        click.echo(text)
        if out is not None:
            cluster = found.cluster
            write_atomically(out, cluster_toml(cluster.name, cluster.groups, text.splitlines()))
    except KeyboardInterrupt:
        say("interrupted: nothing was written")
        sys.exit(INTERRUPTED)
    except OSError as error:
        raise click.ClickException(f"cannot write {out}: {error.strerror}") from error
    if out is not None:
        click.echo(f"wrote {out}; use it as `--cluster {out}`", err=True)


def _text(found: CalibratedHosts) -> str:
    """Return what was measured, line by line."""
    lines = [f"{found.cluster.name}:"]
    for group in found.cluster.groups:
        host, device = group.host, group.host.device
        rate = flop_text(device.rate("float32"))
        lines += [
            f"{group.count} x {host.name}: float32 products {rate}/s a device, memory "
            f"{bytes_text(device.memory_bytes_per_s)}/s",
            f"  links inside {bytes_text(host.link.bytes_per_s)}/s a device, "
            f"{seconds_text(host.link.latency_s)} a hop",
            f"  network {host.num_nics} x {bytes_text(host.nic.bytes_per_s)}/s, "
            f"{seconds_text(host.nic.latency_s)}",
        ]
    for pair in found.pairs:
        lines.append(
            f"hosts {pair.first} and {pair.second}: {seconds_text(pair.latency_s)}; one device "
            f"{bytes_text(pair.one_device_bytes_per_s)}/s, all "
            f"{bytes_text(pair.one_way_bytes_per_s)}/s, both ways at once "
            f"{bytes_text(pair.both_ways_bytes_per_s)}/s each"
        )
    for point, predicted_s in found.collectives:
        lines.append(
            f"{point.kind} of {bytes_text(point.num_bytes)} over all {point.group_size} devices: "
            f"{seconds_text(point.seconds)}, predicted {seconds_text(predicted_s)} "
            f"({predicted_s / point.seconds:.2f})"
        )
    return "\n".join([*lines, *found.notes])
