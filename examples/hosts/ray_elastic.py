"""A loop that goes on where hosts leave and come: Ray Train starts it again with those it has.

`python examples/hosts/ray_elastic.py --hosts 3 4 --folder /shared/run`: the GPT of `meshwise train`
on three or four hosts, as many as the Ray cluster that RAY_ADDRESS names has.  All see the folder.
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path
from typing import Any

import ray.train

import meshwise as mw


def train_loop(config: dict[str, Any]) -> list[float]:
    """Train from the newest checkpoint on, and return the losses of all steps."""
    import jax
    import orbax.checkpoint as ocp

    from meshwise.train.corpus import load_corpus
    from meshwise.train.options import TrainOptions
    from meshwise.train.step import state_creator, train_step_of

    logging.getLogger("absl").setLevel(logging.WARNING)  # Ray prints all that Orbax tells.
    options = TrainOptions(out=Path("runs"), model=config["model"], dropout=0.1)
    corpus = load_corpus(None, seq=options.seq)

    def batch(number: int) -> Any:
        return corpus.batch_at(number, batch=options.batch, seq=options.seq, seed=options.seed)

    # For the hosts that are there now; dropout takes its key from the number of the step.
    step = mw.parallelize(train_step_of(options))
    state = step.init(state_creator(options), jax.random.key(options.seed), batch(0))
    losses: list[float] = []
    items = {"state": mw.checkpoint_handler(), "history": ocp.JsonCheckpointHandler()}
    with ocp.CheckpointManager(config["folder"], item_handlers=items) as manager:
        newest = manager.latest_step()
        if newest is not None:
            target = jax.tree.map(
                lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
            )
            how = ocp.checkpoint_utils.construct_restore_args(target)
            wanted = ocp.args.Composite(
                state=ocp.args.PyTreeRestore(target, restore_args=how),
                history=ocp.args.JsonRestore(),
            )
            found = manager.restore(newest, args=wanted)
            state, losses = found["state"], found["history"]["losses"]
        for number in range(len(losses), config["steps"]):
            state, loss = step(state, batch(number))
            losses.append(float(loss))
            if (number + 1) % config["save_every"] == 0:
                saved = ocp.args.Composite(
                    state=ocp.args.PyTreeSave(state), history=ocp.args.JsonSave({"losses": losses})
                )
                manager.save(number + 1, args=saved)
            if jax.process_index() == 0:
                told = f"done {number + 1} loss {losses[-1]:.6f} hosts {jax.process_count()}"
                print(told, flush=True)
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--hosts", type=int, nargs=2, default=(1, 2), metavar=("MIN", "MAX"))
    parser.add_argument("--devices-per-host", type=int, default=2)
    parser.add_argument("--model", default="small")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--save-every", type=int, default=5)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--max-failures", type=int, default=3)
    parser.add_argument("--look-every", type=float, default=60.0, help="for new hosts, seconds")
    asked = parser.parse_args()
    folder = asked.folder.absolute()
    trainer = mw.ray.trainer(
        train_loop,
        hosts=tuple(asked.hosts),
        devices_per_host=asked.devices_per_host,
        config={
            "model": asked.model,
            "steps": asked.steps,
            "save_every": asked.save_every,
            "folder": str(folder / "checkpoints"),
        },
        run_config=ray.train.RunConfig(
            storage_path=str(folder),
            failure_config=ray.train.FailureConfig(max_failures=asked.max_failures),
        ),
        elastic_resize_monitor_interval_s=asked.look_every,
    )
    for number, loss in enumerate(trainer.fit().return_value, 1):
        print(f"step {number} loss {loss:.6f}")
