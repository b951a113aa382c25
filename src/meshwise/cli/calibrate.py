"""`meshwise calibrate`: measures devices, or asks a target's compiler, and writes a profile."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path

import click
import jax
from click.core import ParameterSource

from meshwise.calibrate.fit import predicted_s
from meshwise.calibrate.measure import QUICK_SIZES, Report, Sizes
from meshwise.calibrate.measure import calibrate as measure
from meshwise.calibrate.target import TARGET_SIZES, calibrate_target, host_of_target
from meshwise.cli.calibrate_job import calibrate_job
from meshwise.cli.outputs import check_writable
from meshwise.cli.params import ByteSize
from meshwise.cluster.description.profile import Profile
from meshwise.cluster.spec import ClusterSpec
from meshwise.system.atomic_file import write_atomically
from meshwise.system.exit_codes import INTERRUPTED
from meshwise.targets.catalog import compile_target
from meshwise.units import bytes_text, flop_text, seconds_text

EXAMPLES = """
\b
Examples:
  meshwise calibrate --out profile.json
      Measures 8 virtual CPU devices (about a minute) and writes a profile.
\b
  meshwise train --cluster profile.json
      Plans with what was measured in place of the built-in numbers.
\b
  meshwise calibrate --devices 0 --out gpu.json
      The accelerators that JAX finds, as fast as they are together.
\b
  echo 'num_hosts = 4
  profile = "gpu.json"
  nic = { latency_s = 14e-6, bytes_per_s = 4e10 }
  num_nics = 8' > cluster.toml
      Four such hosts. State their network, or measure it with --hosts.
\b
  srun meshwise calibrate --hosts --out cluster.toml
      In each process of a job: the hosts and the network between them, for `--cluster`.
\b
  meshwise launch --hosts 2 --devices-per-host 2 -m meshwise calibrate --hosts --out two.toml
      Two hosts of virtual CPU devices on this machine.
\b
  meshwise calibrate --target v5e --out v5e.json
      What XLA:TPU expects products and memory to take, without a TPU (a minute or two).
"""


@click.command(epilog=EXAMPLES)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Where the profile goes. Without it, it is only shown.",
)
@click.option(
    "--devices",
    type=click.IntRange(0),
    default=8,
    show_default=True,
    help="Virtual CPU devices. 0: the accelerators that JAX finds.",
)
@click.option("--memory", type=ByteSize(), help="Of one device, where JAX does not say it.")
@click.option(
    "--target",
    metavar="NAME",
    help="Ask the compiler of this device instead, as v5e or h100; no device is needed.",
)
@click.option(
    "--cluster",
    metavar="CLUSTER",
    help="With --target: the host whose links the profile has. By default that of the catalog.",
)
@click.option(
    "--hosts",
    is_flag=True,
    help="In every process of a job: measures the network between hosts too; writes a TOML file.",
)
@click.option("--quick", is_flag=True, help="A few small sizes in a few seconds: to try it out.")
@click.option("--json", "as_json", is_flag=True, help="The profile as JSON on standard output.")
@click.pass_context
def calibrate(
    context: click.Context,
    out: Path | None,
    devices: int,
    memory: int | None,
    target: str | None,
    cluster: str | None,
    hosts: bool,
    quick: bool,
    as_json: bool,
) -> None:
    """Measure how fast the devices at hand are, or ask the compiler of a target.

    Products by size and dtype, memory bandwidth, and each kind of collective by size: medians of
    repeated runs on all devices at once. The machine should have nothing else to do. Progress goes
    to the standard error; Ctrl-C ends it without a file.

    With --target nothing is measured: the compiler of the target says what it expects of products
    and of passes over memory, for one device. Links and NICs are those of the cluster.
    """
    if hosts:
        calibrate_job(out, memory, QUICK_SIZES if quick else None, _given(context))
        return
    measured = {"--devices", "--memory"} & _given(context)
    if target is not None and measured:
        raise click.UsageError(f"--target measures no devices: leave {' and '.join(measured)} out")
    if target is None and cluster is not None:
        raise click.UsageError("--cluster goes with --target: links of this host are measured")
    if out is not None:
        check_writable(out)
    # Must come before anything asks JAX for a device.
    if devices or target is not None:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", devices or 1)
    start = time.monotonic()

    def report(done: int, total: int, text: str) -> None:
        click.echo(f"[{done}/{total}, {time.monotonic() - start:.0f} s] {text}", err=True)

    try:
        command = shlex.join(["meshwise", *sys.argv[1:]])
        sizes = QUICK_SIZES if quick else None
        profile = (
            measure(jax.devices(), command=command, sizes=sizes, memory_bytes=memory, report=report)
            if target is None
            else _asked(target, cluster, command, sizes, report)
        )
        if out is not None:
            write_atomically(out, profile.to_json())
    except KeyboardInterrupt:
        click.echo("interrupted: no profile was written", err=True)
        sys.exit(INTERRUPTED)
    except OSError as error:
        raise click.ClickException(f"cannot write {out}: {error.strerror}") from error
    click.echo(profile.to_json() if as_json else _summary(profile), nl=False)
    if out is not None:
        click.echo(f"wrote {out}; use it as `meshwise train --cluster {out}`", err=True)


def _given(context: click.Context) -> set[str]:
    """Return the options that stand on the command line."""
    named = context.get_parameter_source
    return {f"--{name}" for name in context.params if named(name) == ParameterSource.COMMANDLINE}


def _asked(
    target: str, cluster: str | None, command: str, sizes: Sizes | None, report: Report
) -> Profile:
    """Return what the compiler of a target says."""
    device = compile_target(target)
    host = host_of_target(device, None if cluster is None else ClusterSpec.named(cluster))
    return calibrate_target(
        device, host, command=command, sizes=sizes or TARGET_SIZES, report=report
    )


def _summary(profile: Profile) -> str:
    """Return what the cost model will use, and how well it fits what was measured."""
    host, device = profile.host, profile.host.device
    at_once = ", one device of all at once" if profile.collectives else ", one device"
    lines = [f"{host.name} ({profile.platform}), {profile.created}{at_once}:"]
    for dtype, rate in device.flop_per_s:
        lines.append(f"  {dtype:<9} products {flop_text(rate)}/s at the largest size")
    lines.append(f"  memory    {bytes_text(device.memory_bytes_per_s)}/s")
    if not profile.collectives:
        lines.append(f"  link      not measured: {host.source}")
        return "\n".join(lines) + "\n"
    lines.append(
        f"  link      {bytes_text(host.link.bytes_per_s)}/s, {seconds_text(host.link.latency_s)} "
        "a hop"
    )
    errors: dict[str, list[float]] = {}
    for point in profile.collectives:
        ratio = predicted_s(point, host.link) / point.seconds
        errors.setdefault(point.kind, []).append(ratio)
    lines.append("  predicted over measured time of collectives:")
    for kind, ratios in errors.items():
        lines.append(f"    {kind:<15} {min(ratios):.2f} to {max(ratios):.2f}")
    return "\n".join(lines) + "\n"
