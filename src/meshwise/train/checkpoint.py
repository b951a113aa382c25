"""Checkpoints of a run: Orbax, step-scoped, atomic, restored into the layout of any other plan.

They are written while the run goes on: the state is copied to the host first.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

import jax
import orbax.checkpoint as ocp
from jax.sharding import Sharding

from meshwise.errors import MeshwiseError
from meshwise.jax_compat import PyTree
from meshwise.runtime.scalars import EveryProcess
from meshwise.train.history import History
from meshwise.train.stage_arrays import checkpoint_handler
from meshwise.train.step import TrainState

KEEP = 2


class Checkpoints:
    """The checkpoints below one folder.  A context manager: leaving it closes Orbax's threads."""

    def __init__(self, folder: Path, identity: dict[str, object]) -> None:
        """Open or create the folder.

        Args:
            folder: Holds one folder a checkpoint, named after its step.
            identity: What a run must agree in to continue another (`TrainOptions.identity`).
        """
        self._folder = folder.absolute()
        self._identity = identity
        self._manager = ocp.CheckpointManager(
            self._folder,
            options=ocp.CheckpointManagerOptions(
                max_to_keep=KEEP, create=True, enable_async_checkpointing=True
            ),
            item_handlers={"state": checkpoint_handler(), "meta": ocp.JsonCheckpointHandler()},
        )

    def __enter__(self) -> Self:
        """Return the checkpoints."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Wait until what was saved is complete, and close Orbax's threads."""
        self._manager.close()

    @property
    def newest_step(self) -> int | None:
        """Step of the newest complete checkpoint; None if there is none."""
        # A folder gets its name when all of it is written, by all processes.
        complete = (step for step in self._manager.all_steps() if self.path(step).exists())
        return max(complete, default=None)

    def save(self, state: TrainState, history: History) -> None:
        """Begin to write a checkpoint of the state; complete or not there at all.

        All processes of a job call it, and each writes what it has.  When it returns the state may
        be donated.  One that is still being written is waited for first.
        """
        step = int(state.step)
        if step != self._manager.latest_step():
            meta = {"identity": self._identity, "history": history.to_json()}
            self._manager.save(
                step,
                args=ocp.args.Composite(
                    state=ocp.args.PyTreeSave(state), meta=ocp.args.JsonSave(meta)
                ),
            )

    def wait(self) -> None:
        """Wait until what was saved is complete; raises what went wrong with it."""
        self._manager.wait_until_finished()

    def path(self, step: int) -> Path:
        """Return the folder of a checkpoint."""
        return self._folder / str(step)

    def restore(self, like: TrainState) -> tuple[TrainState, History]:
        """Read the newest checkpoint.

        Args:
            like: A state whose shapes, dtypes and shardings the result gets; in a job the number
                of steps can be read in every process.  Its arrays are deleted first, so that no
                device holds two states.

        Returns:
            The state, and the history of its run.

        Raises:
            MeshwiseError: there is none, or it is of a run with other settings.
        """
        self.wait()
        step = self.newest_step
        if step is None:
            raise MeshwiseError(f"no checkpoint in {self._folder}")
        meta = self._manager.restore(step, args=ocp.args.Composite(meta=ocp.args.JsonRestore()))
        self._check_identity(meta["meta"]["identity"], step)

        def abstract(leaf: jax.Array, where: Sharding | None = None) -> PyTree:
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where or leaf.sharding)

        target: TrainState = jax.tree.map(abstract, like)
        readable = EveryProcess().place(like.step.ndim, like.step.sharding)
        target = target._replace(step=abstract(like.step, readable))
        for leaf in jax.tree.leaves(like):
            leaf.delete()
        how = ocp.checkpoint_utils.construct_restore_args(target)
        restored = self._manager.restore(
            step, args=ocp.args.Composite(state=ocp.args.PyTreeRestore(target, how))
        )
        return restored["state"], History.from_json(meta["meta"]["history"])

    def _check_identity(self, saved: dict[str, object], step: int) -> None:
        names = sorted(saved.keys() | self._identity.keys())
        other = [
            f"  {name}: {saved.get(name)} there, {self._identity.get(name)} here"
            for name in names
            if saved.get(name) != self._identity.get(name)
        ]
        if other:
            raise MeshwiseError(
                f"the checkpoint of step {step} in {self._folder} is of another run:\n"
                + "\n".join(other)
                + "\nuse the settings of that run, another --out, or --fresh to start anew"
            )
