"""A model on one GPU: our step beside `jax.jit`, with micro-batches beside accumulation by hand.

Run by `one_gpu` for each model, and alone for one of them:

    python -m benchmarks.gpu_model --model gpt-350m --out gpt.json
"""

from __future__ import annotations

import argparse
import fcntl
import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jax
import numpy as np

import meshwise as mw
from benchmarks.hand_accumulation import hand_written_step
from benchmarks.one_device import runner
from benchmarks.pairs import run_pairs
from benchmarks.target_memory import MODELS
from meshwise.api.parallel_step import ParallelStep
from meshwise.errors import MeshwiseError
from meshwise.models.named import model_config
from meshwise.models.steps import Config, ModelStep, model_step
from meshwise.runtime.device_memory import reported_bytes

NUM_MICROBATCHES = 4
# Rows of a batch: a step of 30 to 300 ms on an H100.
ROWS = {"llama-8b": 8, "wide-resnet-tiny": 128, "u-transformer-470m": 64}
ROWS_OF_OTHERS = 32
# The models with convolutions compute in float32, as they do in their papers.
FLOAT32 = ("wide-resnet-tiny", "u-transformer-470m")


def random_batch(config: Config, parts: ModelStep) -> Any:
    """Return a batch of random values: tokens below the vocabulary, one of two segments."""
    rng = np.random.default_rng(0)
    most = getattr(config, "vocab_size", 0) or getattr(config, "num_classes", 0)

    def values(path: Any, spec: jax.ShapeDtypeStruct) -> Any:
        if spec.dtype == np.bool_:
            return np.ones(spec.shape, np.bool_)
        if np.issubdtype(spec.dtype, np.integer):
            high = 2 if "segments" in jax.tree_util.keystr(path) else most
            return rng.integers(high, size=spec.shape).astype(spec.dtype)
        return rng.random(spec.shape).astype(spec.dtype)

    return jax.tree.map_with_path(values, parts.batch)


def predicted(step: ParallelStep, parts: ModelStep) -> dict[str, Any]:
    """What the plan says, and what the target's compiler says without a device."""
    plan = step.plan(parts.state, parts.batch)
    found: dict[str, Any] = {"step_time_s": plan.step_time_s, "predicted_bytes": plan.peak_bytes}
    try:
        verified = step.verify(parts.state, parts.batch)
        found["compiler"] = verified.compiler
        found["compiled_without_device_bytes"] = verified.stages[0].compiled_bytes
    except MeshwiseError as error:
        found["verify"] = f"{type(error).__name__}: {error}"
    return found


def measured(
    ours: ParallelStep, rival: Any, parts: ModelStep, batch: Any, num_pairs: int
) -> dict[str, Any]:
    """Our step beside another one: memory of both, and time in turns."""
    create = jax.jit(parts.create)
    (device,) = jax.devices()
    run = runner(ours, create, batch)
    run()
    run()
    allocator = device.memory_stats() or {}
    times = run_pairs(run, runner(rival, create, batch), num_pairs=num_pairs)
    place = jax.sharding.SingleDeviceSharding(device)
    abstract = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), (parts.state, parts.batch)
    )
    memory = reported_bytes(rival.lower(*abstract).compile().memory_analysis())
    return {
        "compiled_bytes": ours.measured_peak_bytes(parts.state, parts.batch),
        # Of the whole process: making the state, which holds less, and what ran before.
        "allocator_peak_bytes": allocator.get("peak_bytes_in_use"),
        "rival_bytes": memory.peak_bytes,
        **times.to_json(),
    }


def trace(folder: Path, ours: ParallelStep, rival: Any, parts: ModelStep, batch: Any) -> None:
    """Profile one step of each, for a look at single kernels."""
    for name, step in (("ours", ours), ("rival", rival)):
        run = runner(step, jax.jit(parts.create), batch)
        run()
        with jax.profiler.trace(str(folder / name)):
            run()


def main() -> None:
    """Plan, wait for the GPU, and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=list(MODELS), required=True, help="a few layers")
    parser.add_argument("--pairs", type=int, default=20, help="timed pairs of steps")
    parser.add_argument("--lock", type=Path, help="file; who holds its lock has the GPU")
    parser.add_argument("--trace", type=Path, help="folder for profiles of single steps")
    parser.add_argument("--out", type=Path, required=True, help="file for the result")
    options = parser.parse_args()
    if jax.default_backend() != "gpu" or len(jax.devices()) > 1:
        parser.error("this needs one GPU; with more, set CUDA_VISIBLE_DEVICES=0")
    dtype = "float32" if options.model in FLOAT32 else "bfloat16"
    config = model_config(options.model, **MODELS[options.model], dtype=dtype)
    rows = ROWS.get(options.model, ROWS_OF_OTHERS)
    parts = model_step(config, rows)
    batch = random_batch(config, parts)
    found: dict[str, Any] = {"rows": rows, "dtype": dtype, "device": str(jax.devices()[0])}
    steps = {
        number: mw.parallelize(
            parts.step,
            num_microbatches=number,
            # As a loop by hand does: a batch norm sees its micro-batch.
            microbatch_statistics="local",
        )
        for number in (1, NUM_MICROBATCHES)
    }
    for number, step in steps.items():
        found[f"B={number}"] = predicted(step, parts)
    with ExitStack() as stack:
        if options.lock is not None:
            fcntl.flock(stack.enter_context(options.lock.open()), fcntl.LOCK_EX)
        for number, step in steps.items():
            rival = jax.jit(hand_written_step(config, rows, number), donate_argnums=0)
            found[f"B={number}"] |= measured(step, rival, parts, batch, options.pairs)
            options.out.write_text(json.dumps(found, indent=1))
            if options.trace is not None:
                trace(options.trace / f"B={number}", step, rival, parts, batch)


if __name__ == "__main__":
    main()
