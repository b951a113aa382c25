"""`meshwise explain`: a plan file as text."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from meshwise.errors import PlanError
from meshwise.plan.plan import Plan

# Every single operator: left out of `--json`, the file itself has it.
_NOT_SHOWN = ("decision",)


@click.command(epilog="Example: meshwise explain plan.json; `-` reads the standard input.")
@click.argument("plan", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="The same as JSON, for programs.")
def explain(plan: Path, as_json: bool) -> None:
    """Say what a PLAN file means: layouts, collectives, seconds, prices of other choices.

    PLAN is what `plan.to_json()` wrote; `step.priced(...)` makes one with prices.
    """
    try:
        text = sys.stdin.read() if str(plan) == "-" else plan.read_text(encoding="utf-8")
        read = Plan.from_json(text)
    except (OSError, UnicodeDecodeError, PlanError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise click.ClickException(f"{plan}: {reason}") from error
    if not as_json:
        click.echo(read.explain(), nl=False)
        return
    data: dict[str, Any] = json.loads(read.to_json())
    for stage in data["stages"]:
        layouts = stage["decision"]["inputs"]
        for argument, layout in zip(stage["arguments"], layouts, strict=True):
            argument["layout"] = layout
        for name in _NOT_SHOWN:
            del stage[name]
    click.echo(json.dumps(data, sort_keys=True, indent=1))
