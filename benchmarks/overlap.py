"""Collectives as the compilers of targets run them: merged, and hidden behind other work.

Seconds are predictions of the model of the cluster for the collectives and the schedule of the
compiled program; nothing is run.  The compiler must be installed (`pip install
"meshwise[target-gpu]"`); no device is needed.  Other options are given to the compiler by its
environment, as `XLA_FLAGS=--xla_gpu_all_gather_combine_threshold_bytes=8388608`.

    python -m benchmarks.overlap --target h100 --models gpt-350m --methods Zero3 "IntraOp 2x4"
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import meshwise as mw
from benchmarks.target_memory import CLUSTERS, METHODS, MODELS
from meshwise.models.named import model_config
from meshwise.models.steps import model_step
from meshwise.targets.verification import Verification
from meshwise.units import bytes_text, seconds_text

# Rows of a batch; each has 1024 tokens, or 2048.
BATCH: Mapping[str, int] = MappingProxyType({"llama-8b": 16})
HEAD = (
    *("target", "model", "method", "peak: predicted", "compiled", "collectives: planned"),
    *("compiled", "most merged", "seconds: planned", "compiled", "hidden"),
)


def verified(target: str, model: str, method: str, layers: int | None) -> Verification:
    """Compile a step with Adam and bfloat16 products; two stages have four micro-batches."""
    changes: dict[str, Any] = dict(MODELS[model])
    if layers is not None:
        changes["num_layers"] = layers
    config = model_config(model, dtype="bfloat16", **changes)
    step, *args = model_step(config, BATCH.get(model, 32)).abstract
    planned = mw.parallelize(
        step,
        method=METHODS[method],
        cluster=mw.Cluster.virtual(CLUSTERS[target]),
        num_microbatches=4 if method == "2 stages" else 1,
    )
    return planned.verify(*args, target=target)


def row(found: Verification, model: str, method: str) -> str:
    """A row of the table in Markdown."""
    number, num_bytes, seconds = (
        {
            side: math.fsum(getattr(item, f"{side}_{what}") for item in found.collectives)
            for side in ("planned", "compiled")
        }
        for what in ("number", "bytes", "s")
    )
    cells = (
        *(found.target, model, method),
        *(bytes_text(found.predicted_bytes), bytes_text(found.compiled_bytes)),
        *(f"{number[side]:.0f}, {bytes_text(int(num_bytes[side]))}" for side in number),
        str(max((item.merged for item in found.collectives), default=0)),
        *map(seconds_text, seconds.values()),
        seconds_text(math.fsum(item.hidden_s for item in found.collectives)),
    )
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", choices=list(CLUSTERS), default="h100")
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=["gpt-350m"])
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=["Zero3"])
    parser.add_argument("--layers", type=int, help="Layers of the models; by default a few.")
    options = parser.parse_args()
    print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}")
    for model in options.models:
        for method in options.methods:
            found = verified(options.target, model, method, options.layers)
            print(row(found, model, method), flush=True)


if __name__ == "__main__":
    main()
