"""`meshwise diff`: what differs between two plan files."""

from __future__ import annotations

import json
from pathlib import Path

import click

from meshwise.cli.outputs import echo_text
from meshwise.errors import PlanError
from meshwise.plan.columns import shortened, with_space_below
from meshwise.plan.plan import Plan
from meshwise.report.difference import Section, difference_data, difference_text
from meshwise.report.pipeline_diff import pipeline_differences
from meshwise.report.plan_diff import plan_differences
from meshwise.report.plan_file import AnyPlan, plan_from_file
from meshwise.report.plan_memory import memory_check

_LONGEST_NAME = 30
_SAME, _DIFFER, _TROUBLE = 0, 1, 2


class _TroubleError(click.ClickException):
    """What keeps plans from being compared: an exit code of its own, as that of `diff`."""

    exit_code = _TROUBLE


@click.command(
    epilog="Example: meshwise diff before.json after.json\n\n"
    "The exit code is 0 if the plans are equal, 1 if they differ, 2 if they cannot be compared."
)
@click.argument("a", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path))
@click.argument("b", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="The same as JSON, for programs.")
@click.pass_context
def diff(context: click.Context, a: Path, b: Path, as_json: bool) -> None:
    """Say what differs between the plan files A and B, both of one mesh or both pipelines.

    Nothing is printed where they are equal; else a plan that does not fit into memory is named
    first.
    """
    if str(a) == str(b) == "-":
        raise click.UsageError("only one of A and B can be the standard input")
    try:
        first, second = plan_from_file(a), plan_from_file(b)
        found = _differences(first, second)
    except PlanError as error:
        raise _TroubleError(str(error)) from error
    if as_json:
        data = {
            "equal": not found,
            "a": str(a),
            "b": str(b),
            "memory": {"a": memory_check(first).data(), "b": memory_check(second).data()},
            "sections": difference_data(found),
        }
        click.echo(json.dumps(data, indent=1))
    else:
        names = (shortened(str(a), _LONGEST_NAME), shortened(str(b), _LONGEST_NAME))
        plans = zip(names, (first, second), strict=True)
        warning = [
            line for name, plan in plans for line in memory_check(plan).warning_lines(name) if found
        ]
        text = "".join(f"{line}\n" for line in with_space_below(warning))
        echo_text(text + difference_text(found, names), warning)
    context.exit(_DIFFER if found else _SAME)


def _differences(first: AnyPlan, second: AnyPlan) -> tuple[Section, ...]:
    if isinstance(first, Plan) and isinstance(second, Plan):
        return plan_differences(first, second)
    if isinstance(first, Plan) or isinstance(second, Plan):
        raise PlanError(
            "one of the files is a plan of one mesh, the other a pipeline; `meshwise explain` "
            "shows each"
        )
    return pipeline_differences(first, second)
