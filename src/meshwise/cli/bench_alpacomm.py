"""`meshwise bench alpacomm`: transfers between meshes, in simulation."""

from __future__ import annotations

from pathlib import Path

import click

from meshwise.bench.alpacomm.pages import write_micro_pages
from meshwise.errors import MeshwiseError


@click.command()
@click.option(
    "--pages",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("bench-out/alpacomm"),
    show_default=True,
    help="Folder for tables and plots.",
)
@click.option("--plots/--no-plots", default=True, show_default=True, help="With pictures.")
def alpacomm(pages: Path, plots: bool) -> None:
    """Run the evaluation of the AlpaComm paper in simulation.

    Nine ways to lie on two meshes, a series from one device to many, and 200 random cases, with
    all strategies and algorithms. Nothing is measured.
    """
    try:
        files = write_micro_pages(pages, pictures=plots)
    except MeshwiseError as error:
        raise click.ClickException(str(error)) from error
    for file in files:
        click.echo(f"wrote {file}", err=True)
