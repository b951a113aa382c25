"""`meshwise explain`: a plan file, of one mesh or of a pipeline, as text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from meshwise.cli.outputs import check_writable, echo_text
from meshwise.errors import MeshwiseError
from meshwise.inter.pipeline_plan import PipelinePlan
from meshwise.plan.plan import Plan
from meshwise.report.html.page import plan_page
from meshwise.report.plan_file import plan_from_file
from meshwise.report.plan_memory import memory_check
from meshwise.system.atomic_file import write_atomically

# Every single operator: left out of `--json`, the file itself has it.
_NOT_SHOWN = ("decision",)


@click.command(epilog="Example: meshwise explain plan.json; `-` reads the standard input.")
@click.argument("plan", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="The same as JSON, for programs.")
@click.option(
    "--html",
    "html_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The plan as one HTML file with pictures; a pipeline is simulated.",
)
def explain(plan: Path, as_json: bool, html_file: Path | None) -> None:
    """Say what a PLAN file means: layouts, collectives, seconds, prices of other choices.

    PLAN is what `meshwise plan --out PLAN` or `plan.to_json()` wrote; `step.priced(...)` makes one
    with prices.
    """
    if html_file is not None:
        check_writable(html_file)
    try:
        read = plan_from_file(plan)
        if html_file is not None:
            write_atomically(html_file, plan_page(read))
    except MeshwiseError as error:
        raise click.ClickException(str(error)) from error
    if not as_json:
        echo_text(read.explain(), memory_check(read).warning_lines())
        return
    data = _pipeline_data(read) if isinstance(read, PipelinePlan) else _plan_data(read)
    data |= memory_check(read).data()
    click.echo(json.dumps(data, sort_keys=True, indent=1))


def _plan_data(plan: Plan) -> dict[str, Any]:
    """The fields of the file, with the layout of each argument beside it."""
    data: dict[str, Any] = json.loads(plan.to_json())
    for stage in data["stages"]:
        layouts = stage["decision"]["inputs"]
        for argument, layout in zip(stage["arguments"], layouts, strict=True):
            argument["layout"] = layout
        for name in _NOT_SHOWN:
            del stage[name]
    return data


def _pipeline_data(plan: PipelinePlan) -> dict[str, Any]:
    """The fields of the file, and what follows from them."""
    data: dict[str, Any] = json.loads(plan.to_json())
    for stage, fields in zip(plan.stages, data["stages"], strict=True):
        fields["peak_bytes"] = stage.peak_bytes
    return data | {"gap": plan.gap, "peak_bytes": plan.peak_bytes}
