"""`meshwise doctor`: what this installation sees, and what is wrong."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import click

from meshwise.doctor.checkup import checkup
from meshwise.doctor.finding import findings_text, is_sound

EXAMPLES = """
\b
Examples:
  meshwise doctor
      Python, packages, devices, memory, caches, kernels; what is broken has a remedy.
\b
  meshwise doctor --json > doctor.json
      For a report of a bug.
\b
  JAX_PLATFORMS=cpu meshwise doctor
      The same without accelerators.
"""


@click.command(epilog=EXAMPLES)
@click.option("--json", "as_json", is_flag=True, help="The same as JSON, for programs.")
def doctor(as_json: bool) -> None:
    """Say what this installation sees and what is wrong with it.

    Takes a few seconds: JAX is tried in processes of their own. The exit code is 1 if something is
    broken; notes break nothing.
    """
    findings = checkup()
    if as_json:
        data = {"ok": is_sound(findings), "findings": [asdict(finding) for finding in findings]}
        click.echo(json.dumps(data, indent=1))
    else:
        click.echo(findings_text(findings))
    if not is_sound(findings):
        sys.exit(1)
