"""Whether what `meshwise plan` returns fits, over settings that are drawn by seed.

Each setting is a model, a cluster, a batch, a dtype, stages, schedules and, for models that are
small beside the cluster, a memory limit near their state.  It is answered by a plan, which the
guard has counted (`plan/fits`), or by an `InfeasibleError`.  If that error names a memory, the
setting is planned again with exactly that memory, and a plan must be found.

    python -m benchmarks.fits --number 400 --workers 2 --out fits.jsonl --page fits.md
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import meshwise as mw

SMALL = (
    "gpt-tiny gpt-mini gpt-small gpt-medium gpt-125m bert-tiny bert-base llama-tiny llama-small "
    "moe-tiny moe-small wide-resnet-tiny u-transformer-tiny"
).split()
LARGE = (
    "gpt-350m gpt-760m gpt-1.3b gpt-2.6b gpt-6.7b gpt-15b gpt-39b gpt-76b gpt-175b bert-large "
    "bert-1.3b bert-3.9b llama-8b llama-70b llama-405b moe-380m moe-1.3b moe-2.4b moe-10b moe-27b "
    "moe-70b wide-resnet-250m wide-resnet-500m wide-resnet-1b wide-resnet-2b wide-resnet-4b "
    "wide-resnet-6.8b wide-resnet-13b u-transformer-470m u-transformer-1b u-transformer-2b"
).split()
# With at most 64 devices.
CLUSTERS = (
    "1x p3.2xlarge",
    "1x p3.8xlarge",
    "2x p3.8xlarge",
    "1x p3.16xlarge",
    "2x p3.16xlarge",
    "8x p3.16xlarge",
    "1x p4d.24xlarge",
    "2x p4d.24xlarge",
    "1x dgx-a100",
    "4x dgx-a100",
    "1x dgx-h100",
    "2x dgx-h100",
    "8x dgx-h100",
    "1x h200",
    "v4-16",
    "v4-64",
    "v5e-4",
    "v5e-8",
    "v5e-16",
    "v5e-64",
    "v5p-16",
    "v6e-8",
    "v6e-16",
    "1x p3.16xlarge + 1x dgx-a100",
    "2x p4d.24xlarge + 1x dgx-h100",
)
_ALL_SCHEDULES_SHARE = 0.12


class Setting(NamedTuple):
    """What is planned.

    Attributes:
        model: One of `models.named.MODEL_NAMES`.
        cluster: As `Cluster.virtual` takes it.
        batch: Rows.
        dtype: Of products.
        stages: Exactly so many; None for any number.
        schedule: "default" or "all".
        share: Of the state a device may hold so many times its even share; None: what it has.
    """

    model: str
    cluster: str
    batch: int
    dtype: str
    stages: int | None
    schedule: str
    share: float | None


def settings(number: int, seed: int, limited: float) -> list[Setting]:
    """Draw settings by seed, each once.

    Args:
        number: How many.
        seed: Of the draw.
        limited: Share of the settings that are of small models with a limit near their state; the
            others have the memory of the cluster (large models, or with 0 any model).
    """
    rng = random.Random(seed)
    # Small clusters more often: they are planned sooner.
    weights = [1 / max(mw.Cluster.virtual(name).num_devices, 4) for name in CLUSTERS]
    others = LARGE if limited else SMALL + LARGE
    found: dict[Setting, None] = {}
    while len(found) < number:
        is_small = rng.random() < limited
        found[
            Setting(
                model=rng.choice(SMALL if is_small else others),
                cluster=rng.choices(CLUSTERS, weights)[0],
                batch=rng.choice((32, 64, 256)),
                dtype=rng.choice(("float16", "bfloat16", "float32")),
                stages=rng.choice((None, None, 1, 2, 3, 4)),
                schedule="all" if rng.random() < _ALL_SCHEDULES_SHARE else "default",
                share=rng.choice((0.9, 1.1, 1.3, 1.6, 2.0, 3.0, 5.0)) if is_small else None,
            )
        ] = None
    return list(found)


def effort(setting: Setting) -> float:
    """About how long a setting takes, in no unit: the quick ones are answered first."""
    size = 1 if "tiny" in setting.model else 2 if setting.model in SMALL else 3
    every = 4 if setting.schedule == "all" else 1
    return size * every * mw.Cluster.virtual(setting.cluster).num_devices


def answer(setting: Setting, limit_s: int) -> dict[str, Any]:
    """Plan a setting; what came out, as a row."""
    from meshwise.errors import InfeasibleError, MeshwiseError

    row: dict[str, Any] = {"setting": list(setting)}
    start = time.monotonic()
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(limit_s)
    try:
        try:
            row |= _planned(setting, None)
        except InfeasibleError as error:
            row |= {"outcome": "refused", "text": str(error)}
            if named := re.findall(r"memory_bytes=(\d+)", str(error)):
                row["named_bytes"] = int(named[0])
                again = _planned(setting, int(named[0]))
                row["named_is_enough"] = again["peak_bytes"] <= int(named[0])
    except TimeoutError:
        row["outcome"] = f"{row.get('outcome', '')} no answer in {limit_s} s".strip()
    except (MeshwiseError, Exception) as error:
        row |= {"outcome": f"{row.get('outcome', '')} {type(error).__name__}".strip()}
        row["text"] = f"{row.get('text', '')} {error}".strip()
    finally:
        signal.alarm(0)
    row["seconds"] = round(time.monotonic() - start, 1)
    return row


def _too_long(*_: object) -> None:
    raise TimeoutError


def _planned(setting: Setting, memory_bytes: int | None) -> dict[str, Any]:
    import jax

    from meshwise.models.named import model_config
    from meshwise.models.steps import model_step
    from meshwise.plan.text.device_memory import plan_memory
    from meshwise.planner.pipeline import plan_pipeline
    from meshwise.request.pipeline_request import PipelineRequest
    from meshwise.schedules.registry import SEARCHED, named
    from meshwise.trace.step import StepSignature

    cluster = mw.Cluster.virtual(setting.cluster)
    made = model_step(model_config(setting.model, dtype=setting.dtype), setting.batch).abstract
    if memory_bytes is None and setting.share is not None:
        state = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(made[1]))
        memory_bytes = int(setting.share * state / cluster.num_devices)
    request = PipelineRequest(
        cluster=cluster,
        num_stages=setting.stages,
        schedules=named("all") if setting.schedule == "all" else SEARCHED,
        memory_bytes=memory_bytes,
        # Batch norms of the full batch do not separate into micro-batches.
        statistics="local" if setting.model.startswith("wide-resnet") else "exact",
    )
    signature = StepSignature(batch_argnums=(1,), batch_dims=0, donate_argnums="auto")
    plan = plan_pipeline(made[0], made[1:], {}, signature, request).plan
    check = plan_memory(plan)
    return {
        "outcome": "fits" if check.fits else "DOES NOT FIT",
        "num_stages": len(plan.stages),
        "num_microbatches": plan.num_microbatches,
        "schedule": plan.schedule,
        "peak_bytes": plan.peak_bytes,
        "memory_bytes": min(stage.memory_bytes for stage in plan.stages),
        "step_s": plan.step_time_s,
    }


def _answer(job: tuple[Setting, int]) -> dict[str, Any]:
    return answer(*job)


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Rows of a file, if there is one."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def run(jobs: list[tuple[Setting, int]], workers: int) -> Iterator[dict[str, Any]]:
    """Yield answers in the order in which they come."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(workers, maxtasksperchild=12) as pool:
        yield from pool.imap_unordered(_answer, jobs)


def page(rows: list[dict[str, Any]]) -> str:
    """All rows as a table in Markdown, with a summary."""
    from meshwise.units import bytes_text

    counts = Counter(row["outcome"] for row in rows)
    named = [row for row in rows if "named_bytes" in row]
    lines = [
        "# Settings drawn by seed",
        "",
        "Written by `python -m benchmarks.fits` ([what it is](fits.md)). Seconds are wall time of",
        "one of several workers, the second planning of a refusal included.",
        "",
        *(f"- {outcome}: {count}" for outcome, count in sorted(counts.items())),
        f"- refusals that name a memory: {len(named)}; with it a plan was found in "
        f"{sum(row.get('named_is_enough', False) for row in named)} of them",
        "",
        "| model | cluster | batch | dtype | stages | schedule | memory | outcome | peak | s |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in sorted(rows, key=lambda row: [str(x) for x in row["setting"]]):
        s = Setting(*row["setting"])
        memory = "the cluster's" if s.share is None else f"{s.share} x even share"
        peak = ""
        if "peak_bytes" in row:
            peak = f"{bytes_text(row['peak_bytes'])} of {bytes_text(row['memory_bytes'])}"
        elif "named_bytes" in row:
            good = "planned" if row.get("named_is_enough") else "not planned"
            peak = f"named {bytes_text(row['named_bytes'])}: {good}"
        stages = "any" if s.stages is None else s.stages
        lines.append(
            f"| {s.model} | {s.cluster} | {s.batch} | {s.dtype} | {stages} | {s.schedule} | "
            f"{memory} | {row['outcome']} | {peak} | {row['seconds']} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Plan what the file does not have yet, and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--number", type=int, default=400)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument(
        "--limited",
        type=float,
        default=0.8,
        help="share of small models with a limit near their state; 0: any model, no limits",
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--limit-s", type=int, default=150, help="seconds for each setting")
    parser.add_argument("--out", type=Path, required=True, help="a row of JSON for each setting")
    parser.add_argument("--page", type=Path, help="where the table goes")
    args = parser.parse_args()
    done = {tuple(row["setting"]) for row in rows_of(args.out)}
    drawn = sorted(settings(args.number, args.seed, args.limited), key=effort)
    todo = [(s, args.limit_s) for s in drawn if tuple(s) not in done]
    with args.out.open("a") as file:
        for row in run(todo, args.workers) if todo else ():
            file.write(json.dumps(row) + "\n")
            file.flush()
            print(row["outcome"], row["seconds"], *row["setting"], flush=True)
    if args.page is not None:
        args.page.write_text(page(rows_of(args.out)))


if __name__ == "__main__":
    main()
