"""`meshwise simulate`: a plan once more on the simulator, with something changed or not."""

from __future__ import annotations

import json
from pathlib import Path

import click

from meshwise.cli.outputs import check_writable, echo_text, write_output
from meshwise.cli.params import ClusterName, trace_option
from meshwise.cluster.spec import ClusterSpec
from meshwise.report.plan_file import plan_from_file
from meshwise.report.plan_memory import simulated_memory
from meshwise.report.simulation_text import simulation_data, simulation_text
from meshwise.schedules.registry import choices
from meshwise.simulate.plan import Changes, simulate_plan
from meshwise.simulate.trace import chrome_trace

EXAMPLES = """
\b
Examples:
  meshwise simulate plan.json --trace step.json
      The step of a plan, for chrome://tracing or ui.perfetto.dev.
\b
  meshwise simulate plan.json --schedule gpipe --cluster other-network.toml
      The same stages in another order, on hosts with other links.
"""


@click.command(epilog=EXAMPLES)
@click.argument("plan", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path))
@click.option(
    "--cluster",
    type=ClusterName(),
    help="With other links or memory, as '8x p3.16xlarge', or a file; the plan's by default.",
)
@click.option("--schedule", type=click.Choice(list(choices())), help="The plan's by default.")
@click.option(
    "--microbatches", type=click.IntRange(1), metavar="B", help="The plan's number by default."
)
@trace_option
@click.option("--json", "as_json", is_flag=True, help="The same as JSON, for programs.")
def simulate(
    plan: Path,
    cluster: ClusterSpec | None,
    schedule: str | None,
    microbatches: int | None,
    trace_file: Path | None,
    as_json: bool,
) -> None:
    """Simulate one step of the plan in the file PLAN, which `meshwise plan --out PLAN` wrote.

    Times and bytes of stages are those of the file; how long transfers between stages take, who
    waits for whom and how much memory is in use over time comes out.
    """
    if trace_file is not None:
        check_writable(trace_file)
    changes = Changes(
        cluster=cluster,
        schedule=choices()[schedule] if schedule else None,
        num_microbatches=microbatches,
    )
    read = plan_from_file(plan)
    found = simulate_plan(read, changes)
    if trace_file is not None:
        write_output(trace_file, chrome_trace(found.timeline))
    if as_json:
        click.echo(json.dumps(simulation_data(read, found), sort_keys=True, indent=1))
    else:
        warning = simulated_memory(read, found).warning_lines()
        echo_text(simulation_text(read, found), warning)
