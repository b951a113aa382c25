"""Predicted memory beside what a target's compiler says, for programs that are drawn by seed.

A third of the programs of each seed is held out: no number of a model of memory may be fitted to
it.  The compiler must be installed (`pip install "meshwise[target-gpu]"`); no device is needed.

    python -m benchmarks.target_memory --target h100 --number 30 --out memory.jsonl
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import meshwise as mw
from benchmarks.fits import rows_of
from meshwise.units import bytes_text

# A few layers of the models by name: what repeats tells no more.
MODELS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "gpt-350m": {"num_layers": 4},
        "bert-large": {"num_layers": 4},
        "llama-8b": {"num_layers": 2, "seq_len": 2048, "vocab_size": 32000},
        "moe-380m": {"num_layers": 2},
        "wide-resnet-tiny": {"base_channels": 160, "image_size": 224, "num_classes": 1024},
        "u-transformer-470m": {"num_levels": 3},
    }
)
METHODS: Mapping[str, mw.Method] = MappingProxyType(
    {
        "DataParallel": mw.DataParallel(),
        "Zero3": mw.Zero3(),
        "Megatron 2x4": mw.Megatron(2, 4),
        "IntraOp 2x4": mw.IntraOp((2, 4)),
        "IntraOp 8": mw.IntraOp((8,)),
        "2 stages": mw.Auto(stages=2),
    }
)
CLUSTERS: Mapping[str, str] = MappingProxyType(
    {
        "h100": "1x dgx-h100",
        "a100-80": "1x dgx-a100",
        "v5e": "1x tpu-v5e",
        "v5p": "2x tpu-v5p",
    }
)
BATCH = 32


class Case(NamedTuple):
    """A program.

    Attributes:
        model: One of `MODELS`.
        dtype: Of its products.
        remat: Whether blocks are computed again.
        method: One of `METHODS`.
        num_microbatches: Micro-batches.
        is_held_out: Whether nothing is fitted to it.
    """

    model: str
    dtype: str
    remat: bool
    method: str
    num_microbatches: int
    is_held_out: bool


def cases(number: int, seed: int) -> list[Case]:
    """Draw programs; each model and each method about equally often."""
    rng = random.Random(seed)
    models, methods = list(MODELS), list(METHODS)
    rng.shuffle(models)
    rng.shuffle(methods)
    found: list[Case] = []
    for n in range(number):
        model, method = models[n % len(models)], methods[(n + n // len(models)) % len(methods)]
        found.append(
            Case(
                model=model,
                dtype=rng.choice(("float32", "bfloat16")),
                remat=not model.startswith("u-") and rng.random() < 0.5,
                method=method,
                num_microbatches=rng.choice((1, 4)),
                is_held_out=n % 3 == 2,
            )
        )
    return found


def answer(case: Case, target: str) -> dict[str, Any]:
    """Plan and compile a program; predicted and compiled bytes of each stage, as a row."""
    from meshwise.errors import MeshwiseError
    from meshwise.models.named import model_config
    from meshwise.models.steps import model_step

    changes = {**MODELS[case.model], **({"remat": True} if case.remat else {})}
    config = model_config(case.model, dtype=case.dtype, **changes)
    step, *args = model_step(config, BATCH).abstract
    row: dict[str, Any] = {"case": list(case), "target": target}
    start = time.monotonic()
    try:
        planned = mw.parallelize(
            step,
            method=METHODS[case.method],
            cluster=mw.Cluster.virtual(CLUSTERS[target]),
            num_microbatches=case.num_microbatches,
            microbatch_statistics="local" if case.model.startswith("wide-resnet") else "exact",
        )
        found = planned.verify(*args, target=target)
        row["stages"] = [(stage.predicted_bytes, stage.compiled_bytes) for stage in found.stages]
        row["compiler"] = found.compiler
    except MeshwiseError as error:
        row["error"] = f"{type(error).__name__}: {error}"
    row["seconds"] = round(time.monotonic() - start, 1)
    return row


def summary(rows: list[dict[str, Any]]) -> str:
    """The bounds of I2 over all stages of some rows."""
    ratios = sorted(p / c for row in rows for p, c in row.get("stages", ()))
    if not ratios:
        return "no program"
    median = statistics.median(abs(ratio - 1) for ratio in ratios)
    inside = sum(0.95 <= ratio <= 1.20 for ratio in ratios) / len(ratios)
    return (
        f"{len(ratios)} stages of {len(rows)} programs: {ratios[0]:.3f} to {ratios[-1]:.3f}, "
        f"{inside:.0%} within 0.95 and 1.20, median error {median:.1%}"
    )


def page(rows: list[dict[str, Any]]) -> str:
    """A table in Markdown of some rows."""
    lines = [
        "| program | dtype | remat | method | B | held out | compiled | predicted / compiled |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        model, dtype, remat, method, count, is_held_out = row["case"]
        stages = row.get("stages", ())
        compiled = ", ".join(bytes_text(c) for _, c in stages)
        ratios = ", ".join(f"{p / c:.3f}" for p, c in stages) or "refused by the planner"
        cells = [model, dtype, _mark(remat), method, str(count), _mark(is_held_out)]
        lines.append(f"| {' | '.join([*cells, compiled, ratios])} |")
    return "\n".join(lines) + "\n"


def _mark(value: bool) -> str:
    return "yes" if value else ""


def main() -> None:
    """Compile programs and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", choices=list(CLUSTERS), default="h100")
    parser.add_argument("--number", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="Rows; those there are kept.")
    parser.add_argument("--page", type=Path, help="The rows as a table in Markdown.")
    options = parser.parse_args()
    rows = rows_of(options.out) if options.out.exists() else []
    done = {(tuple(row["case"]), row["target"]) for row in rows}
    with options.out.open("a") as file:
        for case in cases(options.number, options.seed):
            if (tuple(case), options.target) in done:
                continue
            row = answer(case, options.target)
            rows.append(row)
            file.write(json.dumps(row) + "\n")
            file.flush()
            ratios = " ".join(f"{p / c:.3f}" for p, c in row.get("stages", ()))
            print(*case, ratios or row.get("error"), row["seconds"], flush=True)
    if options.page is not None:
        options.page.write_text(page(rows))
    for is_held_out in (False, True):
        some = [row for row in rows if row["case"][-1] == is_held_out]
        print("held out:" if is_held_out else "fitted:", summary(some))


if __name__ == "__main__":
    main()
