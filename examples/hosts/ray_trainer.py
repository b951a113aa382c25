"""The GPT of `meshwise train`, by Ray Train: the loop runs in a process on each host.

`python examples/hosts/ray_trainer.py`: two hosts with two virtual CPU devices each, on this machine
or on two nodes of the Ray cluster that RAY_ADDRESS names.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import meshwise as mw


def train_loop(config: dict[str, Any]) -> list[float]:
    """Train in one process of the job, and return the losses."""
    import jax
    import ray.train

    from meshwise.train.corpus import load_corpus
    from meshwise.train.options import TrainOptions
    from meshwise.train.step import state_creator, train_step_of

    options = TrainOptions(out=Path("runs"))
    corpus = load_corpus(None, seq=options.seq)
    step = mw.parallelize(
        train_step_of(options),
        method=mw.Auto(stages=config["stages"]),
        num_microbatches=1 if config["stages"] is None else 4,
    )
    state, losses = None, []
    for number in range(config["steps"]):
        batch = corpus.batch_at(number, batch=options.batch, seq=options.seq, seed=options.seed)
        if state is None:
            state = step.init(state_creator(options), jax.random.key(options.seed), batch)
        state, loss = step(state, batch)
        losses.append(float(loss))
        ray.train.report({"step": number + 1, "loss": losses[-1]})  # Ray Train prints it
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--devices-per-host", type=int, default=2)
    parser.add_argument("--stages", type=int)
    parser.add_argument("--steps", type=int, default=10)
    asked = parser.parse_args()
    trainer = mw.ray.trainer(
        train_loop,
        hosts=asked.hosts,
        devices_per_host=asked.devices_per_host,
        config={"stages": asked.stages, "steps": asked.steps},
    )
    for number, loss in enumerate(trainer.fit().return_value, 1):
        print(f"step {number} loss {loss:.6f}")
