"""`meshwise verify`: what the compiler of a target says of a plan, without its devices."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import click

import meshwise as mw
from meshwise.cli.option_names import with_options
from meshwise.cli.params import batch_option, config_option, dtype_option, statistics_option
from meshwise.cli.plan_warnings import plan_warnings_shown
from meshwise.cli.steps import chosen_step, model_names
from meshwise.report.plan_file import plan_from_file
from meshwise.system.progress import shown
from meshwise.targets.child import CompileAnswer
from meshwise.targets.compiler import Listener
from meshwise.trace.step import Statistics
from meshwise.units import bytes_text, seconds_text

EXAMPLES = """
\b
Examples:
  meshwise plan --model gpt-1.3b --cluster "1x dgx-h100" --dtype bfloat16 --out plan.json
  meshwise verify plan.json --model gpt-1.3b --dtype bfloat16
      Memory and collectives of the plan's programs as XLA:GPU compiles them for H100.
\b
  meshwise verify plan.json --step my_module:make --target a100-80
      A step of your own, for other devices than those of the plan.
"""


# Exit code of a plan that does not fit by the compiler; 1 is that of an error.
DOES_NOT_FIT = 3


@click.command(epilog=EXAMPLES)
@click.argument("plan", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path))
@click.option("--model", help=f"The model that was planned: {model_names()}.", metavar="NAME")
@click.option("--step", metavar="MODULE:NAME", help="A step of your own, as for `meshwise plan`.")
@batch_option
@dtype_option
@config_option
@statistics_option
@click.option("--target", metavar="NAME", help="As h100; the devices of the plan by default.")
@click.option("--json", "as_json", is_flag=True, help="The same as JSON, for programs.")
def verify(
    plan: Path,
    model: str | None,
    step: str | None,
    batch: int | None,
    dtype: str,
    changes: tuple[str, ...],
    statistics: Statistics,
    target: str | None,
    as_json: bool,
) -> None:
    """Compile the programs of the plan in the file PLAN with the compiler of a target.

    No device is needed. Programs that were compiled once are kept in the user's cache folder.
    The exit code is 3 if the compiler finds that the plan does not fit, 1 if it cannot be verified.
    """
    start = time.monotonic()

    def report(text: str) -> None:
        click.echo(f"{time.monotonic() - start:7.1f} s  {text}", err=True)

    found = plan_from_file(plan)
    fun, state, rows = chosen_step(model, step, batch, dtype, changes)
    replayed = mw.parallelize(
        fun,
        method=mw.Replay(found),
        cluster=found.cluster,
        num_microbatches=found.num_microbatches,
        microbatch_statistics=statistics,
    )
    with shown(_say), plan_warnings_shown(_warn):
        verified = replayed.verify(state, rows, target=target, listener=told_by(report))
    click.echo(verified.to_json() if as_json else verified.explain(), nl=False)
    if not verified.fits:
        raise click.exceptions.Exit(DOES_NOT_FIT)


def _say(text: str) -> None:
    click.echo(text, err=True)


def _warn(text: str) -> None:
    _say(f"warning: {with_options(text, 'plan')}")


def told_by(report: Callable[[str], None]) -> Listener:
    """Return a listener that reports each compiled program.

    Args:
        report: Is given a line.
    """

    def tell(name: str, answer: CompileAnswer) -> None:
        peak = bytes_text(answer.memory.peak_bytes)
        report(f"compiled {name} in {seconds_text(answer.seconds)}: {peak}")

    return tell
