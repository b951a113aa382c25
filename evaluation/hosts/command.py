"""`python -m evaluation hosts`: the main job on shaped hosts of this machine."""

from __future__ import annotations

import sys

import click

from evaluation.hosts.iproute import TestbedError
from evaluation.hosts.obstacle import obstacle
from evaluation.hosts.testbed import Testbed
from evaluation.hosts.training import train_on_hosts

EXAMPLES = """
\b
Examples:
  python -m evaluation hosts
      Two hosts, a stage on each, 400 Mbit/s between them.
\b
  python -m evaluation hosts --rate 100mbit -- --microbatches 8
      A slower link; what follows -- is for `meshwise train`.
"""
_DEFAULT = ("--stages", "2", "--microbatches", "4", "--steps", "12", "--fresh")


@click.command(epilog=EXAMPLES)
@click.option("--hosts", type=click.IntRange(2), default=2, show_default=True, help="Hosts.")
@click.option(
    "--devices-per-host",
    type=click.IntRange(1),
    default=2,
    show_default=True,
    help="Virtual CPU devices of each.",
)
@click.option("--rate", default="400mbit", show_default=True, help="What each link carries.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def hosts(hosts: int, devices_per_host: int, rate: str, arguments: tuple[str, ...]) -> None:
    """Train on hosts of this machine, network namespaces with links of a set rate.

    It needs root. At the end stands what a step was predicted to take and what it took; then the
    hosts are removed, whatever happened.
    """
    reason = obstacle()
    if reason is not None:
        raise click.ClickException(reason)
    try:
        with Testbed(hosts=hosts, rate=rate) as testbed:
            code = train_on_hosts(
                testbed, devices_per_host, [*_DEFAULT, *arguments], lambda line: click.echo(line)
            )
    except TestbedError as error:
        raise click.ClickException(str(error)) from error
    sys.exit(code)
