"""`meshwise explain`: a plan file as text."""

from __future__ import annotations

import json
from pathlib import Path

import click

from meshwise.cli.option_names import shown
from meshwise.cli.outputs import check_writable, echo_text, write_output
from meshwise.plan.files.json_read import Json
from meshwise.plan.plan import Plan
from meshwise.plan.text.device_memory import plan_memory
from meshwise.report.html.page import plan_page
from meshwise.report.plan_file import plan_from_file
from meshwise.report.schedules import elsewhere_text

# Every single operator: left out of `--json`, the file itself has it.
_NOT_SHOWN = ("decisions",)


@click.command(
    epilog="Example: meshwise explain plan.json; `-` reads the standard input.",
)
@click.argument("plan", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="The same as JSON, for programs.")
@click.option(
    "--full",
    is_flag=True,
    help="Every layer, stage and argument by itself; else what is equal shares a row.",
)
@click.option(
    "--html",
    "html_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The plan as one HTML file with pictures and a simulated step.",
)
def explain(plan: Path, full: bool, as_json: bool, html_file: Path | None) -> None:
    """Say what a PLAN file means: layouts, collectives, seconds, prices of other choices.

    PLAN is what `meshwise plan --out PLAN` or `plan.to_json()` wrote; `step.priced(...)` makes one
    with prices.
    """
    if full and as_json:
        raise click.UsageError("--json says everything already: leave --full out")
    if html_file is not None:
        check_writable(html_file)
    read = plan_from_file(plan)
    told = shown(read, "plan")
    if html_file is not None:
        write_output(html_file, plan_page(told))
    if not as_json:
        text = told.explain(full=full) + elsewhere_text(read)
        echo_text(text, plan_memory(read).warning_lines())
        return
    data = _plan_data(read) | plan_memory(read).data()
    click.echo(json.dumps(data, sort_keys=True, indent=1))


def _plan_data(plan: Plan) -> dict[str, Json]:
    """Return the fields of the file without every single operator, and what follows from them."""
    data: dict[str, Json] = json.loads(plan.to_json())
    for name in _NOT_SHOWN:
        del data[name]
    for stage, fields in zip(plan.stages, data["stages"], strict=True):
        fields["peak_bytes"] = stage.peak_bytes
    return data
