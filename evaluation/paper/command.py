"""`python -m evaluation paper`: the evaluation of the Alpa paper, in simulation."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import click

from evaluation.paper.figures import FIGURES, Figure
from evaluation.paper.methods import METHODS
from evaluation.paper.pages import write_pages
from evaluation.paper.result import Result
from evaluation.paper.run import run
from evaluation.paper.settings import SETTINGS
from evaluation.paper.store import Store
from meshwise.errors import MeshwiseError
from meshwise.units import bytes_text, seconds_text

_PETA = 1e15

EXAMPLES = """
\b
Examples:
  python -m evaluation paper --only fig7a --settings gpt-350m,gpt-1.3b
      Two columns of figure 7a with all its methods.
\b
  python -m evaluation paper --only fig7a --methods Meshwise,Megatron-LM --microbatches 128
      One number of micro-batches, two methods.
\b
  python -m evaluation paper --no-run --pages docs/paper
      Tables and pictures from the results that are there.
"""


class _Names(click.ParamType[Any]):
    """Names of a list, separated by commas."""

    name = "names"

    def __init__(self, known: tuple[str, ...]) -> None:
        self.known = known

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the names, checked."""
        if isinstance(value, tuple):
            return value
        names = tuple(name.strip() for name in value.split(","))
        for name in names:
            if name not in self.known:
                self.fail(f"no {name!r}; there are {', '.join(self.known)}", param, ctx)
        return names


@click.command(epilog=EXAMPLES)
@click.option(
    "--only", "figures", type=_Names(tuple(FIGURES)), help="Figures, as fig7a,fig8; all by default."
)
@click.option(
    "--settings",
    type=_Names(tuple(SETTINGS)),
    help="Settings of them, as gpt-1.3b; all by default.",
)
@click.option("--methods", type=_Names(tuple(METHODS)), help="Methods of them; all by default.")
@click.option(
    "--microbatches",
    "counts",
    multiple=True,
    type=click.IntRange(1),
    help="A number of micro-batches to try; may be repeated. What each setting says by default, "
    "mostly all powers of two.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("bench-out/paper"),
    show_default=True,
    help="Folder of results; what is there for the same code and options is not planned again.",
)
@click.option(
    "--pages", type=click.Path(file_okay=False, path_type=Path), help="Folder for tables and plots."
)
@click.option("--plots/--no-plots", default=True, show_default=True, help="With pictures.")
@click.option(
    "--run/--no-run", "is_run", default=True, show_default=True, help="Plan, or only show."
)
def paper(
    figures: tuple[str, ...] | None,
    settings: tuple[str, ...] | None,
    methods: tuple[str, ...] | None,
    counts: tuple[int, ...],
    out: Path,
    pages: Path | None,
    plots: bool,
    is_run: bool,
) -> None:
    """Run the evaluation of the Alpa paper in simulation.

    Each result is a file in the folder --out as soon as it is there: after Ctrl-C the same command
    goes on with the rest. Progress goes to the standard error. Nothing is measured.
    """
    chosen = [FIGURES[name] for name in figures or FIGURES]
    store = Store(out)
    if is_run:
        start = time.monotonic()

        def report(text: str) -> None:
            click.echo(f"{time.monotonic() - start:7.1f} s  {text}", err=True)

        for name, asked in _cases(chosen, settings, methods).items():
            setting = SETTINGS[name]
            if counts:
                setting = dataclasses.replace(setting, microbatches=counts)
            for result in run(setting, asked, store, lambda text, n=name: report(f"{n}: {text}")):
                click.echo(_line(result))
    if pages is not None:
        try:
            files = write_pages(pages, store.all(), chosen, pictures=plots)
        except MeshwiseError as error:
            raise click.ClickException(str(error)) from error
        for file in files:
            click.echo(f"wrote {file}", err=True)


def _cases(
    figures: list[Figure], settings: tuple[str, ...] | None, methods: tuple[str, ...] | None
) -> dict[str, list[str]]:
    """For each setting the methods that some figure wants there, each once."""
    found: dict[str, list[str]] = {}
    for figure in figures:
        for setting in figure.settings:
            if settings is not None and setting.name not in settings:
                continue
            asked = found.setdefault(setting.name, [])
            for method in figure.methods:
                if method not in asked and (methods is None or method in methods):
                    asked.append(method)
    return found


def _line(result: Result) -> str:
    answer = result.answer
    head = f"{result.setting}, {result.method}: "
    if not answer.fits:
        return f"{head}no plan: {answer.why}"
    return (
        f"{head}{seconds_text(answer.step_time_s)} simulated, "
        f"{result.flop_per_s / _PETA:.4g} PFLOP/s, {bytes_text(answer.peak_bytes)}, "
        f"B {answer.num_microbatches}, {answer.chosen}"
    )
