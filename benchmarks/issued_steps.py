"""One process that counts the seconds in which its Python thread works to issue a step.

`python -m benchmarks.issued_steps DEVICES STEPS [alone]`, in a job of `meshwise launch` or alone.
The last line that it prints is JSON.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import meshwise as mw

WIDTH, NUM_LAYERS, ROWS, NUM_STAGES, NUM_MICROBATCHES = 8, 8, 16, 2, 8
_WARM_UP = 20


def small_pipeline() -> tuple[mw.ParallelStep, Any, Any]:
    """Return a pipeline whose programs are so small that a step is all dispatch; its arguments."""
    rng = np.random.default_rng(0)
    params = [rng.normal(size=(WIDTH, WIDTH)).astype(np.float32) for _ in range(NUM_LAYERS)]
    batch = {name: rng.normal(size=(ROWS, WIDTH)).astype(np.float32) for name in ("x", "y")}
    tx = optax.sgd(0.001, momentum=0.9)

    def train_step(state: Any, batch: Any) -> Any:
        def loss_fn(params: Any) -> Any:
            x = batch["x"]
            for w in params:
                x = jnp.tanh(x @ w)
            return jnp.mean((x - batch["y"]) ** 2)

        loss, grads = mw.value_and_grad(loss_fn)(state[0])
        updates, opt = tx.update(grads, state[1], state[0])
        return (optax.apply_updates(state[0], updates), opt), loss

    step = mw.parallelize(
        train_step,
        method=mw.Auto(stages=NUM_STAGES),
        num_microbatches=NUM_MICROBATCHES,
    )
    return step, (params, tx.init(params)), batch


def issue_seconds(num_steps: int) -> dict[str, Any]:
    """Run steps; return the median seconds of this thread, without those in which it waits."""
    step, state, batch = small_pipeline()
    spent: list[float] = []
    for _ in range(_WARM_UP + num_steps):
        start = time.thread_time()
        state, loss = step(state, batch)
        spent.append(time.thread_time() - start)
        jax.block_until_ready((state, loss))
    executable: Any = step._last
    return {
        "process": jax.process_index(),
        "num_processes": jax.process_count(),
        "issue_s": statistics.median(spent[_WARM_UP:]),
        "num_instructions": len(executable.pipeline.program.order),
        "layers_of_stages": [s.last_layer - s.first_layer + 1 for s in step.plans[0].stages],
        "devices_of_stages": [s.num_devices for s in step.plans[0].stages],
    }


def main(devices: str, steps: str, alone: str = "") -> None:
    """Join the job, if there is one, and print what was counted."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", int(devices))
    if not alone:
        jax.distributed.initialize()
    print(json.dumps(issue_seconds(int(steps))), flush=True)
    if not alone:
        jax.distributed.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
