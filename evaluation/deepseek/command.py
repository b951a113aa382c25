"""`python -m evaluation deepseek`: DeepSeek-V3's shape, as published and as planned."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from evaluation.deepseek.published import SHARES, Published, exchange_s, with_exchanges
from meshwise.cluster.spec import ClusterSpec
from meshwise.plan.plan import Plan
from meshwise.units import bytes_text, seconds_text

EXAMPLES = """
\b
Examples:
  python -m evaluation deepseek
      The published parallelism on 1,024 H100, 3 minutes of one core.
\b
  meshwise plan --step evaluation.deepseek.model:make --cluster "128x dgx-h100" \\
      --microbatches 120 --microbatches 240 --microbatches 480 --out free.json
  python -m evaluation deepseek --plan free.json
      Beside it a free plan.
"""


@click.command(epilog=EXAMPLES)
@click.option(
    "--gpus",
    type=click.Choice(["1024", "2048"]),
    default="1024",
    show_default=True,
    help="H100, 8 a host.",
)
@click.option(
    "--plan",
    "files",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A plan of the same step to set beside it; may be repeated.",
)
def deepseek(gpus: str, files: tuple[Path, ...]) -> None:
    """Simulate DeepSeek-V3's shape with its published parallelism, and free plans beside it.

    All have the same costs. Exchanges of tokens between experts are planned as all-to-alls of
    eight copies, which nothing hides. Beside that stands what the step takes if they take half (at
    most four hosts a token), and if they take nothing.
    """
    cluster = ClusterSpec.virtual(f"{int(gpus) // 8}x dgx-h100")
    for point, plan in Published().plans(cluster):
        click.echo("\n".join(_lines(f"published, {point}", plan)))
    for file in files:
        plan = Plan.from_json(file.read_text())
        click.echo("\n".join(_lines(f"{file.name}: {plan.schedule}", plan)))


def _lines(title: str, plan: Plan) -> Iterator[str]:
    yield title
    seconds = [seconds_text(with_exchanges(plan, share)) for share in SHARES]
    yield f"  step: {seconds[0]}; {seconds[1]} with half the exchanges, {seconds[2]} with none"
    of_mesh = [0.0] * plan.num_meshes
    for mesh, once_s in zip(plan.mesh_of_stage, exchange_s(plan), strict=True):
        of_mesh[mesh] += once_s * plan.num_microbatches
    longest = seconds_text(max(of_mesh))
    yield f"  {bytes_text(plan.peak_bytes)} a device, exchanges of {longest} on a mesh"
