"""One process of a job, or one alone, that saves or restores the state of a step with Orbax.

Its arguments are what it does and a folder: `save` runs two steps and saves, `restore` restores and
runs one, `whole` runs three.  It prints the loss of each step.
"""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

import meshwise as mw
from doubles.layered_steps import CLIPPED, gpt_step
from hosts.joined import join

STEPS = 2


def main(what: str, folder: str, stages: str) -> None:
    """Save or restore.

    Args:
        what: `save`, `restore` or `whole`.
        folder: Of the checkpoints.
        stages: How many; 0 for one mesh.
    """
    step, (state, batch) = gpt_step(CLIPPED, num_layers=2)
    if stages == "0":
        parallel = mw.parallelize(step, method=mw.Zero3(), num_microbatches=2)
    else:
        parallel = mw.parallelize(step, method=mw.Auto(stages=int(stages)), num_microbatches=2)

    def run(state: Any, count: int) -> Any:
        for _ in range(count):
            state, loss, *_ = parallel(state, batch)
            sys.stdout.write(f"loss {float(loss):.12f}\n")
        return state

    with ocp.CheckpointManager(folder, item_handlers=mw.checkpoint_handler()) as manager:
        if what == "restore":
            born = parallel.init(lambda: state, batch)
            target = jax.tree.map(
                lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), born
            )
            how = ocp.checkpoint_utils.construct_restore_args(target)
            state = manager.restore(STEPS, args=ocp.args.PyTreeRestore(target, how))
        else:
            state = run(state, STEPS)
        if what == "save":
            # Arrays that each process has for itself, and one on the host.
            own = {"device": jnp.arange(3.0), "host": np.arange(5)}
            manager.save(STEPS, args=ocp.args.PyTreeSave(state))
            manager.save(STEPS + 1, args=ocp.args.PyTreeSave(own))
            manager.wait_until_finished()
            how = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), own)
            kept = manager.restore(STEPS + 1, args=ocp.args.PyTreeRestore(own, how))
            for name, value in own.items():
                np.testing.assert_array_equal(kept[name], value)
        else:
            run(state, 1)


if __name__ == "__main__":
    arguments = join()
    with jax.enable_x64(True):
        main(*arguments)
    jax.distributed.shutdown()
