"""A step on one GPU with Adam's moments in the memory of the host, beside all on the GPU.

python -m benchmarks.gpu_host_state --model gpt-350m --out host_state.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import jax

import meshwise as mw
from benchmarks.gpu_model import ROWS, ROWS_OF_OTHERS, random_batch
from benchmarks.one_device import runner
from benchmarks.pairs import run_pairs
from benchmarks.target_memory import MODELS
from meshwise.models.named import model_config
from meshwise.models.steps import model_step


def main() -> None:
    """Plan both, run them in turns, and compare seconds and bytes with the plans."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=list(MODELS), default="gpt-350m", help="a few layers")
    parser.add_argument("--pairs", type=int, default=10, help="timed pairs of steps")
    parser.add_argument("--out", type=Path, required=True, help="file for the result")
    options = parser.parse_args()
    config = model_config(options.model, **MODELS[options.model], dtype="bfloat16")
    parts = model_step(config, ROWS.get(options.model, ROWS_OF_OTHERS))
    batch, create = random_batch(config, parts), jax.jit(parts.create)
    steps = {
        name: mw.parallelize(parts.step, method=mw.Auto(offload=offload))
        for name, offload in (("in host", True), ("on device", False))
    }
    found = {
        name: {
            "step_time_s": step.plan(parts.state, parts.batch).step_time_s,
            "predicted_bytes": step.plan(parts.state, parts.batch).peak_bytes,
            "compiled_bytes": step.measured_peak_bytes(parts.state, parts.batch),
        }
        for name, step in steps.items()
    }
    runs = [runner(step, create, batch) for step in steps.values()]
    times = run_pairs(runs[0], runs[1], num_pairs=options.pairs)
    sizes = [x.size * x.dtype.itemsize for x in jax.tree.leaves(parts.state)]
    result = {"device": str(jax.devices()[0]), "state_bytes": sum(sizes), **found}
    options.out.write_text(json.dumps({**result, **times.to_json()}, indent=1))


if __name__ == "__main__":
    main()
