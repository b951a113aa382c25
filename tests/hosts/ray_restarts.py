"""Ray Train starts the processes of a job again after one was killed."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ray.train

import meshwise as mw


def train_loop(config: dict[str, Any]) -> tuple[float, int, bool]:
    step = mw.parallelize(lambda state, batch: (state - batch.mean(), batch.sum()))
    state, batch = jnp.zeros(8), jnp.ones((8, 2))
    state, _ = step(state, batch)
    killed = Path(config["killed"])
    if jax.process_index() == 1 and not killed.exists():
        killed.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    _, total = step(state, batch)
    return float(total), jax.device_count(), killed.exists()


if __name__ == "__main__":
    folder = sys.argv[1]
    trainer = mw.ray.trainer(
        train_loop,
        hosts=2,
        devices_per_host=2,
        config={"killed": f"{folder}/killed"},
        run_config=ray.train.RunConfig(
            failure_config=ray.train.FailureConfig(max_failures=1), storage_path=folder
        ),
    )
    assert trainer.fit().return_value == (16.0, 4, True)
    sys.stdout.write("passed\n")
