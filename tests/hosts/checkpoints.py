"""One process of a job, or one alone, that saves or restores the state of a step with Orbax.

Its arguments are what it does and a folder: `save` runs two steps and saves while it trains on,
`restore` restores and runs one, `whole` runs three.  It prints the loss of each step that counts.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint._src.serialization import jax_array_handlers

import meshwise as mw
from doubles.layered_steps import CLIPPED, gpt_step
from hosts.joined import join

STEPS = 2


class HeldWrites:
    """Holds up what Orbax writes in the background, after it was copied to the host."""

    def __init__(self) -> None:
        self.may_go_on = threading.Event()
        self.has_begun = threading.Event()
        self._write = jax_array_handlers._async_serialize_replica_slices
        jax_array_handlers._async_serialize_replica_slices = self.write

    async def write(self, *args: Any, **kwargs: Any) -> Any:
        self.has_begun.set()
        await asyncio.to_thread(self.may_go_on.wait)
        return await self._write(*args, **kwargs)


def save_beside_training(manager: Any, parallel: Any, state: Any, batch: Any) -> None:
    """Save the state, which is donated to later steps before a byte of it is written."""
    writes, complete = HeldWrites(), Path(manager.directory) / str(STEPS)
    manager.save(STEPS, args=ocp.args.PyTreeSave(state))
    try:
        assert writes.has_begun.wait(60)
        saved = [leaf for leaf in jax.tree.leaves(state) if leaf.addressable_shards]
        for _ in range(3):
            state, loss, *_ = parallel(state, batch)
            assert np.isfinite(float(loss))
        jax.block_until_ready(state)
        # On CPUs the host's copy may be the array itself, which JAX then donates to no program.
        assert jax.process_count() == 1 or any(leaf.is_deleted() for leaf in saved)
        assert manager.is_saving_in_progress()
        assert not complete.exists()
    finally:
        writes.may_go_on.set()
    manager.wait_until_finished()
    assert complete.exists()


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
            save_beside_training(manager, parallel, state, batch)
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
