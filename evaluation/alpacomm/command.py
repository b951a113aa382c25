"""`python -m evaluation alpacomm`: transfers between meshes, in simulation."""

from __future__ import annotations

import time
from pathlib import Path

import click

from evaluation.alpacomm.end_to_end_page import write_end_to_end
from evaluation.alpacomm.pages import write_micro_pages
from evaluation.alpacomm.settings import SETTINGS, planned_stages
from evaluation.alpacomm.stages import PlannedStages
from meshwise.errors import MeshwiseError, PlanError
from meshwise.system.atomic_file import write_atomically

EXAMPLES = """
\b
Examples:
  python -m evaluation alpacomm
      The nine cases and the series, and all pipelines that were planned before.
\b
  python -m evaluation alpacomm --plan gpt-1.3b --plan u-transformer-1b
      Plan these pipelines first (seconds for a GPT, minutes for a U-Transformer).
"""


@click.command(epilog=EXAMPLES)
@click.option(
    "--plan",
    "wanted",
    multiple=True,
    type=click.Choice(tuple(SETTINGS)),
    help="A pipeline to plan, if its file is not there; may be repeated.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("bench-out/alpacomm/results"),
    show_default=True,
    help="Folder of planned pipelines.",
)
@click.option(
    "--pages",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("bench-out/alpacomm"),
    show_default=True,
    help="Folder for tables and plots.",
)
@click.option("--plots/--no-plots", default=True, show_default=True, help="With pictures.")
@click.option("--cases/--no-cases", default=True, show_default=True, help="With the nine cases.")
def alpacomm(wanted: tuple[str, ...], out: Path, pages: Path, plots: bool, cases: bool) -> None:
    """Run the evaluation of the AlpaComm paper in simulation.

    Nine ways to lie on two meshes, a series from one device to many, and 200 random cases, with
    all strategies and algorithms; pipelines of two stages, with all ways to send and schedules.
    Nothing is measured.
    """
    try:
        for name in wanted:
            _plan(name, out)
        files = write_end_to_end(pages, _planned(out), pictures=plots)
        files += write_micro_pages(pages, pictures=plots) if cases else ()
    except MeshwiseError as error:
        raise click.ClickException(str(error)) from error
    for file in files:
        click.echo(f"wrote {file}", err=True)


def _plan(name: str, out: Path) -> None:
    file = out / f"{name}.json"
    if file.exists():
        click.echo(f"{name}: known", err=True)
        return
    start = time.monotonic()
    found = planned_stages(
        SETTINGS[name],
        lambda text: click.echo(f"{time.monotonic() - start:7.1f} s  {name}: {text}", err=True),
    )
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(file, found.to_json())


def _planned(out: Path) -> list[PlannedStages]:
    found: list[PlannedStages] = []
    for name in SETTINGS:
        file = out / f"{name}.json"
        if file.exists():
            try:
                found.append(PlannedStages.from_json(file.read_text(encoding="utf-8")))
            except ValueError as error:
                raise PlanError(f"{file}: {error}; remove it, and plan again") from error
    return found
