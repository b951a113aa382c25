"""`python -m evaluation predictions`: plans of two shaped hosts, predicted and run."""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import click

from evaluation.hosts.iproute import TestbedError
from evaluation.hosts.job import run_on_hosts
from evaluation.hosts.obstacle import obstacle
from evaluation.hosts.testbed import Testbed
from evaluation.machine import this_machine
from evaluation.predictions.results import HEAD, Result, findings, from_line
from evaluation.predictions.settings import DEVICES_PER_HOST, drawn
from evaluation.predictions.settings import end_to_end as compared
from meshwise.cli.outputs import check_writable
from meshwise.system.atomic_file import write_atomically

EXAMPLES = """
\b
Examples:
  python -m evaluation predictions
      Ten plans, drawn by a seed.
\b
  python -m evaluation predictions --end-to-end
      GPT and U-Transformer in two stages, by each strategy of transfers.
\b
  python -m evaluation predictions --plans 4 --seed 3 --rate 50mbit
      Others, on a slower link.
"""
_SHOWN_LINES = 40
_NUM_HOSTS = 2


@click.command("predictions", epilog=EXAMPLES)
@click.option("--plans", type=click.IntRange(1), default=10, show_default=True, help="Plans.")
@click.option("--seed", type=int, default=0, show_default=True, help="Which are drawn.")
@click.option(
    "--end-to-end",
    is_flag=True,
    help="In place of drawn plans AlpaComm's comparison: two models in two stages, sent in all "
    "ways.",
)
@click.option("--rate", default="100mbit", show_default=True, help="What each link carries.")
@click.option(
    "--steps", type=click.IntRange(1), default=5, show_default=True, help="Measured steps of each."
)
@click.option(
    "--page",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("bench-out/predictions.md"),
    show_default=True,
    help="File for the table.",
)
def predictions(plans: int, seed: int, end_to_end: bool, rate: str, steps: int, file: Path) -> None:
    """Predict steps on two hosts of this machine, and run them.

    The hosts are network namespaces with a link of a set rate; it needs root. `meshwise calibrate
    --hosts` measures them; each plan is made with the cluster file that it writes. At the end, or
    at Ctrl-C, the hosts are removed.
    """
    reason = obstacle()
    if reason is not None:
        raise click.ClickException(reason)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.ClickException(f"cannot write {file}: {error.strerror}") from error
    check_writable(file)
    machine = this_machine()
    settings = compared() if end_to_end else drawn(plans, seed)

    def say(line: str) -> None:
        click.echo(line, err=True)

    say(f"{machine}")
    results: list[Result] = []

    def take(line: str) -> bool:
        result = from_line(line, settings)
        if result is not None:
            results.append(result)
            say(result.row())
        return result is not None

    try:
        with (
            Testbed(hosts=_NUM_HOSTS, rate=rate) as testbed,
            tempfile.TemporaryDirectory() as folder,
        ):
            cluster = Path(folder) / "cluster.toml"
            calibrate = ["meshwise", "calibrate", "--hosts", "--out", str(cluster)]
            _run(testbed, calibrate, lambda line: not say(line))
            measured = [line[2:] for line in _comments(cluster)]
            settings_text = json.dumps([setting.fields() for setting in settings])
            module = "evaluation.predictions.process"
            _run(testbed, [module, str(cluster), settings_text, str(steps)], take)
    except TestbedError as error:
        raise click.ClickException(str(error)) from error
    which = "--end-to-end" if end_to_end else f"--plans {plans} --seed {seed}"
    command = f"python -m evaluation predictions {which} --rate {rate}"
    lines = [
        "# AlpaComm end to end" if end_to_end else "# Predictions on two hosts",
        "",
        f"{machine}.",
        f"`{command} --steps {steps} --page {file}` writes this page.",
        "",
        f"{_NUM_HOSTS} hosts are network namespaces of one machine with {DEVICES_PER_HOST} virtual "
        f"CPU devices each and a link of {rate}. `meshwise calibrate --hosts` measured them, each "
        "plan was made with its cluster file, and its steps were run: the median is compared with "
        "what the plan says (simulated for pipelines).",
        "",
        "In a job also the collectives of CPU devices of one process are gloo's. Plans of one mesh "
        "with hundreds of them in a step are predicted too fast: beside products of 0.3 to 2.3 ms "
        "a sum of 16 KiB in a process takes 2.7 to 3.3 ms, and 0.4 ms alone, while between "
        "processes it takes as long as alone. Calibration that measured the first in place of the "
        "second made data parallelism 1.6 times too dear: a link has one latency.",
        "",
        *(f"- {line}" for line in findings(results)),
        "",
        *HEAD,
        *(result.row() for result in results),
        "",
        "What was measured of the hosts:",
        "",
        "```",
        *measured,
        "```",
        "",
    ]
    write_atomically(file, "\n".join(lines))
    for line in findings(results):
        click.echo(line)
    say(f"wrote {file}")


def _run(testbed: Testbed, arguments: list[str], take: Callable[[str], bool]) -> None:
    """Run a module on the hosts; lines of process 0 that nobody takes are kept for an error."""
    others: list[str] = []
    lock = threading.Lock()

    def line_of(host: int, line: str) -> None:
        with lock:
            if host or not take(line):
                others.append(f"[host {host}] {line}")

    code = run_on_hosts(testbed, DEVICES_PER_HOST, arguments, line_of)
    if code:
        text = "\n".join(others[-_SHOWN_LINES:])
        raise TestbedError(f"a process of the job ended with {code}:\n{text}")


def _comments(path: Path) -> list[str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.startswith("# ")]
