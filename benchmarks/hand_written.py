"""The explicit program against the same plan as plain shardings under `jax.jit`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import meshwise as mw
from benchmarks.model_configs import CONFIGS
from benchmarks.pairs import run_pairs
from benchmarks.workload import abstract_batch, training_step
from meshwise.cluster.cpu import cpu_cluster
from meshwise.models.sizes.gpt_sizes import gpt_config
from meshwise.models.steps import ModelStep, model_step
from meshwise.request.methods import Method
from meshwise.spmd.program import compile_options, concrete_mesh, shardings

BATCH = 16
NUM_DEVICES = 8
MEGATRON = mw.Megatron(dp=2, tp=4)
FOUND = mw.IntraOp((8,))
CASES: dict[str, tuple[Method, ...]] = {
    "gpt": (mw.DataParallel(), MEGATRON),
    "bert": (mw.DataParallel(), MEGATRON),
    "llama": (mw.DataParallel(), MEGATRON),
    "moe": (mw.DataParallel(), FOUND),
    "wide-resnet": (mw.DataParallel(), FOUND),
}


def hand_written(quick: bool) -> dict[str, Any]:
    """Goal: at most 1.05 for each model and method (interleaved pairs, same compile options)."""
    num_pairs = 5 if quick else 30
    return {
        f"{model} {type(method).__name__}": _compare(_step_of(model), method, num_pairs)
        for model, methods in CASES.items()
        for method in methods
    }


def _step_of(model: str) -> ModelStep:
    if model != "gpt":
        return model_step(*CONFIGS[model])
    config = gpt_config("small")
    step, create = training_step(config)
    return ModelStep(step=step, create=create, batch=abstract_batch(config, BATCH))


def _compare(parts: ModelStep, method: Method, num_pairs: int) -> dict[str, Any]:
    ours = mw.parallelize(parts.step, method=method, cluster=cpu_cluster(NUM_DEVICES))
    plan = ours.plan(parts.state, parts.batch)
    mesh = concrete_mesh(plan.mesh, jax.devices()[:NUM_DEVICES])
    placed_as = jax.tree.structure(((parts.state, parts.batch), {}))
    (state_sharding, batch_sharding), _ = jax.tree.unflatten(
        placed_as, shardings(plan.decision.inputs, mesh)
    )
    theirs = jax.jit(
        parts.step,
        in_shardings=(state_sharding, batch_sharding),
        out_shardings=(state_sharding, None),
        donate_argnums=0,
        compiler_options=compile_options("cpu", NUM_DEVICES),
    )
    batch = jax.device_put(jax.tree.map(_numbers, parts.batch), batch_sharding)
    born = jax.jit(parts.create, out_shardings=state_sharding)
    return run_pairs(
        _runner(ours, born, batch), _runner(theirs, born, batch), num_pairs=num_pairs
    ).to_json()


def _numbers(spec: Any) -> np.ndarray:
    """A batch entry: small whole numbers, valid as tokens, segments and classes, or normal ones."""
    rng = np.random.default_rng(0)
    if np.issubdtype(spec.dtype, np.floating):
        return rng.normal(size=spec.shape).astype(spec.dtype)
    return rng.integers(2, size=spec.shape).astype(spec.dtype)


def _runner(step: Any, create: Callable[..., Any], batch: Any) -> Callable[[], None]:
    box = [create(jax.random.key(0))]

    def run() -> None:
        box[0], loss = step(box[0], batch)
        jax.block_until_ready((box[0], loss))

    return run
