"""`python -m evaluation alpacomm-measured`: AlpaComm's cases on shaped hosts of this machine."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from evaluation.alpacomm.measured.page import MeasuredPage
from evaluation.alpacomm.measured.results import compared, plain_rate
from evaluation.alpacomm.measured.run import hosts_needed, measure
from evaluation.alpacomm.measured.transfers import CASE_NAMES, transfers
from evaluation.hosts.iproute import TestbedError
from evaluation.hosts.obstacle import obstacle
from evaluation.hosts.stream import plain_stream
from evaluation.hosts.testbed import Testbed
from evaluation.machine import this_machine
from meshwise.resharding.cross_mesh.strategies import STRATEGIES
from meshwise.system.atomic_file import write_atomically
from meshwise.units import MIB

EXAMPLES = """
\b
Examples:
  python -m evaluation alpacomm-measured
      All cases with all strategies and orderings, 10 minutes.
\b
  python -m evaluation alpacomm-measured --cases 1,7 --strategies broadcast --mib 4
      Two of them, smaller.
\b
  python -m evaluation alpacomm-measured --page docs/measurements/alpacomm_measured.md
      Write the page of the project.
"""


def _listed(known: tuple[str, ...]) -> object:
    def split(_context: object, _parameter: object, text: str | None) -> tuple[str, ...]:
        names = known if text is None else tuple(name.strip() for name in text.split(","))
        for name in names:
            if name not in known:
                raise click.BadParameter(f"{name!r} is none of {', '.join(known)}")
        return names

    return split


@click.command("alpacomm-measured", epilog=EXAMPLES)
@click.option(
    "--cases",
    callback=_listed(CASE_NAMES),
    help=f"Names, separated by commas: {', '.join(CASE_NAMES)}.  [default: all]",
)
@click.option(
    "--strategies",
    callback=_listed(tuple(STRATEGIES)),
    help=f"Names, separated by commas: {', '.join(STRATEGIES)}.  [default: all]",
)
@click.option(
    "--rate-mbit",
    type=click.FloatRange(0.1),
    default=100.0,
    show_default=True,
    help="What each link carries in each direction, in Mbit/s.",
)
@click.option(
    "--mib", type=click.IntRange(1), default=16, show_default=True, help="MiB of each tensor."
)
@click.option(
    "--repeats",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="How often each transfer is measured; the shortest time counts.",
)
@click.option(
    "--page",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("bench-out/alpacomm_measured.md"),
    show_default=True,
    help="File for the tables.",
)
@click.pass_context
def alpacomm_measured(
    context: click.Context,
    cases: tuple[str, ...],
    strategies: tuple[str, ...],
    rate_mbit: float,
    mib: int,
    repeats: int,
    file: Path,
) -> None:
    """Measure AlpaComm's cases between hosts of this machine.

    The hosts are network namespaces with links of a set rate; it needs root. Every strategy really
    sends, and stands beside its simulation; so do orderings of a broadcast where they make a
    difference. At the end, or at Ctrl-C, the hosts are removed.
    """
    reason = obstacle()
    if reason is not None:
        raise click.ClickException(reason)
    machine = this_machine()
    num_hosts = hosts_needed(cases)
    try:
        with Testbed(hosts=num_hosts, rate=f"{rate_mbit:.6f}mbit") as testbed:
            click.echo(f"{machine}", err=True)
            stream = max(
                plain_stream(testbed, 0, 1, mib * MIB, timeout_s=600.0) for _ in range(repeats)
            )
            click.echo(f"a plain stream carries {stream / 1e6:.2f} MB/s", err=True)
            found = measure(
                testbed, cases, strategies, mib, repeats, lambda line: click.echo(line, err=True)
            )
    except TestbedError as error:
        raise click.ClickException(str(error)) from error
    rate = plain_rate(found, mib)
    page = MeasuredPage(
        command=_command(context),
        machine=machine,
        num_hosts=num_hosts,
        rate_mbit=rate_mbit,
        mib=mib,
        repeats=repeats,
        stream_bytes_per_s=stream,
        plain_bytes_per_s=rate,
        rows=compared(transfers(cases, mib, strategies), found, rate),
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, page.text())
    for line in page.findings():
        click.echo(line)
    click.echo(f"wrote {file}", err=True)


def _command(context: click.Context) -> str:
    """Return the command line, with the options that were set."""
    words = ["python", "-m", "evaluation", str(context.command.name)]
    for parameter in context.command.params:
        name = str(parameter.name)
        source = context.get_parameter_source(name)
        if source is click.core.ParameterSource.COMMANDLINE:
            value = context.params[name]
            text = ",".join(value) if isinstance(value, tuple) else str(value)
            words += [parameter.opts[0], text]
    return shlex.join(words)
