"""`meshwise doctor`: what this installation sees, and what is wrong."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

import click

from meshwise.doctor.checkup import checkup
from meshwise.doctor.finding import Finding, findings_text, is_sound
from meshwise.hosts.detection import detected_member
from meshwise.hosts.member import JobMember
from meshwise.hosts.roll_call import roll_call
from meshwise.targets.installed import check_compilers

EXAMPLES = """
\b
Examples:
  meshwise doctor
      Python, packages, devices, memory, caches, the solver; what is broken has a remedy.
\b
  meshwise doctor --json > doctor.json
      For a report of a bug.
\b
  JAX_PLATFORMS=cpu meshwise doctor
      The same without accelerators.
\b
  srun meshwise doctor --hosts
      In each process of a job, before the job itself: names, ports, versions, links.
\b
  meshwise doctor --hosts --coordinator 10.0.0.1:1234 --processes 2 --process-id 0
      Where JAX does not detect the job; with --process-id 1 on the other host.
"""


@click.command(epilog=EXAMPLES)
@click.option("--json", "as_json", is_flag=True, help="The same as JSON, for programs.")
@click.option("--hosts", is_flag=True, help="Check the job of this process, together with it.")
@click.option("--coordinator", metavar="HOST:PORT", help="Address of process 0. Default: as JAX.")
@click.option(
    "--processes", type=click.IntRange(1), metavar="N", help="Their number. Default: as JAX."
)
@click.option(
    "--process-id", type=click.IntRange(0), metavar="I", help="Of this one. Default: as JAX."
)
@click.option(
    "--limit",
    "limit_s",
    type=click.FloatRange(0, min_open=True),
    default=30.0,
    show_default=True,
    metavar="S",
    help="Seconds in which all processes must have come.",
)
def doctor(
    *,
    as_json: bool,
    hosts: bool,
    coordinator: str | None,
    processes: int | None,
    process_id: int | None,
    limit_s: float,
) -> None:
    """Say what this installation sees and what is wrong with it.

    Takes a few seconds: JAX is tried in processes of their own. The exit code is 1 if something is
    broken; notes break nothing.

    With --hosts it runs in all processes of a job, and says what is wrong between them before
    jax.distributed starts: processes that are missing or there twice, names of hosts, closed ports,
    versions, slow links. Process 0 prints what was found; all have the same exit code.
    """

    def tell(findings: Sequence[Finding]) -> None:
        data = {"ok": is_sound(findings), "findings": [asdict(finding) for finding in findings]}
        click.echo(json.dumps(data, indent=1) if as_json else findings_text(findings))

    given = {"--coordinator": coordinator, "--processes": processes, "--process-id": process_id}
    if hosts:
        findings = roll_call(
            _member(coordinator, processes, process_id), tell=tell, limit_s=limit_s
        )
    elif named := [name for name, value in given.items() if value is not None]:
        raise click.UsageError(f"{' and '.join(named)} go with --hosts")
    else:
        findings = checkup(check_compilers())
        tell(findings)
    if not is_sound(findings):
        sys.exit(1)


def _member(coordinator: str | None, processes: int | None, process_id: int | None) -> JobMember:
    """Return the place of this process, from the options or as JAX detects it.

    Raises:
        click.UsageError: neither says it.
        click.ClickException: JAX fails.
    """
    if coordinator is None and processes is None and process_id is None:
        try:
            member = detected_member()
        except (ImportError, RuntimeError) as error:
            raise click.ClickException(
                f"JAX cannot detect the job: {error}; give --coordinator, --processes and "
                "--process-id"
            ) from error
        if member is None:
            raise click.UsageError(
                "this process is in no job: run it under `meshwise launch`, `srun` or `mpirun`, or "
                "give --coordinator, --processes and --process-id"
            )
        return member
    if coordinator is None or processes is None or process_id is None:
        raise click.UsageError("--coordinator, --processes and --process-id go together")
    member = JobMember(coordinator=coordinator, num_processes=processes, process_id=process_id)
    try:
        _ = member.address
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--coordinator") from error
    return member
