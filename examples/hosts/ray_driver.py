"""The GPT of `meshwise train`, from a driver without devices: Ray starts a process on each host.

`python examples/hosts/ray_driver.py`: two hosts with two virtual CPU devices each, on this machine
or on two nodes of the Ray cluster that RAY_ADDRESS names.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import jax

import meshwise as mw
from meshwise.train.corpus import load_corpus
from meshwise.train.options import TrainOptions
from meshwise.train.step import state_creator, train_step_of

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--devices-per-host", type=int, default=2)
    parser.add_argument("--stages", type=int)
    parser.add_argument("--steps", type=int, default=10)
    asked = parser.parse_args()
    # What the driver computes is small: accelerators are for the hosts.
    jax.config.update("jax_platforms", "cpu")
    options = TrainOptions(out=Path("runs"))
    corpus = load_corpus(None, seq=options.seq)

    with mw.Cluster.ray(hosts=asked.hosts, devices_per_host=asked.devices_per_host) as cluster:
        step = mw.parallelize(
            train_step_of(options),
            cluster=cluster,
            method=mw.Auto(stages=asked.stages),
            num_microbatches=1 if asked.stages is None else 4,
        )
        state = None
        for number in range(asked.steps):
            batch = corpus.batch_at(number, batch=options.batch, seq=options.seq, seed=options.seed)
            if state is None:
                state = step.init(state_creator(options), jax.random.key(options.seed), batch)
                print(step.plan(state, batch).explain())
            state, loss = step(state, batch)  # handles: the arrays stay on the hosts
            print(f"step {number + 1} loss {loss:.6f}", flush=True)
