"""A driver evaluates, saves and restores what lives on its hosts."""

from __future__ import annotations

import sys
from typing import Any

import jax
import orbax.checkpoint as ocp

import meshwise as mw
import plain_jax


def restored(state: Any, folder: str) -> Any:
    """Save a state, and restore it into its own layout; in every process."""
    with ocp.CheckpointManager(folder, item_handlers=mw.checkpoint_handler()) as manager:
        manager.save(0, args=ocp.args.PyTreeSave(state))
        manager.wait_until_finished()
        told = ocp.checkpoint_utils.construct_restore_args(state)
        return manager.restore(0, args=ocp.args.PyTreeRestore(state, restore_args=told))


def heldout(params: Any, batch: Any) -> jax.Array:
    return plain_jax.train_step({"params": params, "momentum": params}, batch)[1]["loss"]


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    first, second = plain_jax.batches(2)
    with mw.Cluster.ray(hosts=2, devices_per_host=2) as cluster:
        step = mw.parallelize(plain_jax.train_step, cluster=cluster, method=mw.Zero3())
        state = step.init(plain_jax.create_state, jax.random.key(0), first)
        state, _ = step(state, first)
        look = mw.parallelize(heldout, cluster=cluster, method=mw.Follow(step))
        loss = float(look(state["params"], second))
        copy = cluster.run(restored, state, sys.argv[1])
        again = mw.parallelize(
            plain_jax.train_step, cluster=cluster, method=mw.Replay(step.plan(state, second))
        )
        for train, what in ((step, state), (again, copy)):
            _, told = train(what, second)
            assert abs(float(told["loss"]) - loss) < 1e-5
    sys.stdout.write("passed\n")
