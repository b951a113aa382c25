"""One process of a job that trains a small net, is disturbed, and goes on from its checkpoints.

`meshwise launch` starts it.  Its arguments are the folder of the checkpoints, how many stages there
are (0 for one mesh over all processes), the number of steps, and faults.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import meshwise as mw
from evaluation.faults.faults import STEP, Fault, disturbed
from meshwise.runtime.job.job import current_job
from meshwise.system.exit_codes import START_AGAIN
from meshwise.train.checkpoint import Checkpoints
from meshwise.train.history import History
from meshwise.train.step import TrainState

WIDTH, ROWS, NUM_LAYERS = 8, 8, 4
SAVE_EVERY = 2


def problem() -> tuple[Any, Any]:
    """Return a step, and what makes its state; with dropout, so that keys must go on, too."""
    tx = optax.adam(1e-2)

    def create(key: jax.Array) -> TrainState:
        keys = jax.random.split(key, NUM_LAYERS)
        params = [jax.random.normal(k, (WIDTH, WIDTH)) / 3 for k in keys]
        return TrainState(jnp.int32(0), params, tx.init(params))

    def train_step(state: TrainState, batch: Any) -> tuple[TrainState, jax.Array]:
        key = jax.random.fold_in(jax.random.key(1), state.step)

        def loss_fn(params: Any) -> jax.Array:
            x = batch["x"]
            for number, w in enumerate(params):
                x = jnp.tanh(x @ w)
                if number == 0:
                    x = x * jax.random.bernoulli(key, 0.9, (WIDTH,))
            return jnp.mean((x - batch["y"]) ** 2)

        loss, grads = mw.value_and_grad(loss_fn)(state.params)
        updates, opt = tx.update(grads, state.opt_state, state.params)
        return TrainState(state.step + 1, optax.apply_updates(state.params, updates), opt), loss

    return train_step, create


def batch_at(number: int) -> dict[str, np.ndarray]:
    """Return the batch of a step."""
    rng = np.random.default_rng(number)
    return {name: rng.normal(size=(ROWS, WIDTH)).astype(np.float32) for name in ("x", "y")}


def main(folder: str, stages: str, num_steps: str, *faults: str) -> None:
    """Train."""
    jax.config.update("jax_disable_most_optimizations", True)
    jax.distributed.initialize()
    job = current_job()
    assert job is not None
    stops: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stops.append(number))
    attempt = int(os.environ.get("MESHWISE_RESTARTS", "0"))
    with disturbed([Fault.parse(text) for text in faults], job.process, attempt) as disturbance:
        step, create = problem()
        method = mw.Auto(stages=int(stages)) if int(stages) else mw.Zero3()
        parallel = mw.parallelize(step, method=method, num_microbatches=2)
        state = parallel.init(create, jax.random.key(0), batch_at(0))
        losses: list[float] = []
        with Checkpoints(Path(folder), {}) as checkpoints:
            if checkpoints.newest_step is not None:
                state, history = checkpoints.restore(state)
                losses = list(history.losses)
            while len(losses) < int(num_steps):
                state, loss = parallel(state, batch_at(len(losses)))
                losses.append(float(loss))
                say(f"loss {len(losses)} {losses[-1].hex()}")
                is_over = "True" in job.exchange("whether to stop", str(bool(stops)))
                if is_over or len(losses) % SAVE_EVERY == 0:
                    checkpoints.save(state, History(losses=tuple(losses)))
                if is_over:
                    checkpoints.wait()
                    sys.exit(START_AGAIN)
                disturbance.at(STEP)
    say(f"seen {disturbance.seen}")
    say(f"losses {' '.join(loss.hex() for loss in losses)}")


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
