"""`python -m evaluation NAME`: papers, models, and what runs on hosts of this machine."""

from __future__ import annotations

import click

from evaluation.alpacomm.command import alpacomm
from evaluation.alpacomm.measured.command import alpacomm_measured
from evaluation.anchor.command import anchor
from evaluation.deepseek.command import deepseek
from evaluation.faults.command import faults
from evaluation.hosts.command import hosts
from evaluation.paper.command import paper
from evaluation.predictions.command import predictions

EXAMPLES = """
\b
Examples:
  python -m evaluation paper --only fig7a
      Plan and simulate the settings of figure 7a with all its methods.
\b
  python -m evaluation alpacomm --no-plots
      Compare ways to move tensors between meshes.
\b
  python -m evaluation alpacomm-measured --cases 1,7
      Move tensors between hosts of this machine, with links of a set rate.
\b
  python -m evaluation anchor --quick
      Predict one published run from another.
\b
  python -m evaluation deepseek --gpus 2048
      DeepSeek-V3's shape with its published parallelism.
\b
  python -m evaluation hosts
      Train on two hosts of this machine, with a link of a set rate between them.
\b
  python -m evaluation predictions
      Measure two such hosts, plan for them, and run the plans.
\b
  python -m evaluation faults --every 10
      Kill processes while they train, and see that training goes on.

`python -m evaluation NAME --help` shows the options of each.
"""


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=EXAMPLES,
)
def main() -> None:
    """Compare methods on the settings of papers, and what runs on hosts of this machine."""


for _command in (
    paper,
    alpacomm,
    alpacomm_measured,
    anchor,
    deepseek,
    hosts,
    predictions,
    faults,
):
    main.add_command(_command)


if __name__ == "__main__":
    main(prog_name="python -m evaluation")
