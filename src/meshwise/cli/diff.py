"""`meshwise diff`: what differs between two plan files."""

from __future__ import annotations

import json
from pathlib import Path

import click

from meshwise.cli.outputs import echo_text
from meshwise.errors import PlanError
from meshwise.plan.text.columns import with_space_below
from meshwise.plan.text.device_memory import plan_memory
from meshwise.plan.text.shortening import told_apart
from meshwise.report.difference import difference_data, difference_text
from meshwise.report.plan_diff import plan_differences
from meshwise.report.plan_file import plan_from_file

_LONGEST_NAME = 30
_SAME, _DIFFER, _TROUBLE = 0, 1, 2


class _TroubleError(click.ClickException):
    """What keeps plans from being compared: an exit code of its own, as that of `diff`."""

    exit_code = _TROUBLE


@click.command(
    epilog="Example: meshwise diff before.json after.json\n\n"
    "The exit code is 0 if the plans are equal, 1 if they differ, 2 if they cannot be compared.",
)
@click.argument("a", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path))
@click.argument("b", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="The same as JSON, for programs.")
@click.pass_context
def diff(context: click.Context, a: Path, b: Path, as_json: bool) -> None:
    """Say what differs between the plan files A and B.

    Nothing is printed where they are equal; else a plan that does not fit into memory is named
    first.
    """
    if str(a) == str(b) == "-":
        raise click.UsageError("only one of A and B can be the standard input")
    try:
        first, second = plan_from_file(a), plan_from_file(b)
        found = plan_differences(first, second)
    except PlanError as error:
        raise _TroubleError(str(error)) from error
    if as_json:
        data = {
            "equal": not found,
            "a": str(a),
            "b": str(b),
            "memory": {"a": plan_memory(first).data(), "b": plan_memory(second).data()},
            "sections": difference_data(found),
        }
        click.echo(json.dumps(data, indent=1))
    else:
        names = told_apart(str(a), str(b), (_LONGEST_NAME, _LONGEST_NAME))
        plans = zip(names, (first, second), strict=True)
        warning = [
            line for name, plan in plans for line in plan_memory(plan).warning_lines(name) if found
        ]
        text = "".join(f"{line}\n" for line in with_space_below(warning))
        echo_text(text + difference_text(found, names), warning)
    context.exit(_DIFFER if found else _SAME)
