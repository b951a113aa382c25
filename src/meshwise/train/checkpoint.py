"""Checkpoints of a run: Orbax, step-scoped, atomic, restored into the layout of any other plan.

They are written while the run goes on: the state is copied to the host first.  One that is damaged
is found by its checksums, and the one before is taken.  In a job all processes come to the same
verdict on each.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import jax
import orbax.checkpoint as ocp
from jax.sharding import Sharding
from orbax.checkpoint.options import AsyncOptions

from meshwise.errors import CheckpointError
from meshwise.jax_compat.jaxprs import PyTree
from meshwise.runtime.job.job import current_job
from meshwise.runtime.scalars import EveryProcess
from meshwise.system.writable import probe_writable
from meshwise.trace.weak_types import weak_types, with_weak_types
from meshwise.train.checkpoint_meta import (
    META_FILE,
    CheckpointMeta,
    check_identity,
    meta_text,
    read_meta,
    steps_in,
)
from meshwise.train.checksums import CHECKSUMS, damage_of
from meshwise.train.history import History
from meshwise.train.orbax_notes import set_notes_aside
from meshwise.train.save_barrier import OtherProcessError, SaveBarrier
from meshwise.train.stage_arrays import checkpoint_handler
from meshwise.train.step import TrainState

_TEMPORARY = ".orbax-checkpoint-tmp"  # Orbax's suffix of what is not complete.
_LINE_CHARS = 400

# Is told of a checkpoint that was not taken: its step, where it is now, what is wrong with it.
OnDamaged = Callable[[int, Path, str], None]


class Checkpoints:
    """The checkpoints below one folder.  A context manager: leaving it closes Orbax's threads."""

    def __init__(self, folder: Path, identity: dict[str, object], *, keep: int = 2) -> None:
        """Open or create the folder; what an earlier run left unfinished there is removed.

        Args:
            folder: Holds one folder a checkpoint, named after its step.
            identity: What a run must agree in to continue another (`TrainOptions.identity`).
            keep: How many checkpoints stay; the oldest goes when a new one is complete.
        """
        self._folder = folder.absolute()
        self._identity = identity
        self._job = current_job()
        self._barrier = None if self._job is None else SaveBarrier(self._job)
        self._saving: int | None = None
        self._damaged: set[int] = set()
        if self._job is None:
            self._clear()
        else:
            self._job.from_first("the notes of checkpoints", self._clear)
        self._manager = ocp.CheckpointManager(
            self._folder,
            options=ocp.CheckpointManagerOptions(
                max_to_keep=keep,
                create=True,
                enable_async_checkpointing=True,
                # Threads that wait for a folder that cannot be made would keep the process alive.
                async_options=AsyncOptions(
                    barrier_sync_fn=self._barrier, create_directories_asynchronously=False
                ),
            ),
            item_handlers={
                "state": checkpoint_handler(verify=False),
                "meta": ocp.JsonCheckpointHandler(META_FILE),
            },
        )

    def _clear(self) -> str:
        """Remove what is unfinished, now: Orbax would do it in a thread that nobody waits for."""
        set_notes_aside(self._folder)
        for path in self._folder.glob(f"*{_TEMPORARY}*"):
            shutil.rmtree(path, ignore_errors=True)
        return ""

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
        try:
            if error is None:
                self.wait()
            else:
                self.settle()
        finally:
            self._manager.close()

    @property
    def newest_step(self) -> int | None:
        """Step of the newest complete checkpoint; None if there is none."""
        return max(self._steps(), default=None)

    def is_complete(self, step: int) -> bool:
        """Return whether the checkpoint of a step is complete."""
        # A folder gets its name when all of it is written, by all processes.
        return self.path(step).exists() and step not in self._damaged

    def path(self, step: int) -> Path:
        """Return the folder of a checkpoint."""
        return self._folder / str(step)

    def save(self, state: PyTree, history: History) -> None:
        """Begin to write a checkpoint of the state; complete or not there at all.

        All processes of a job call it, and each writes what it has.  When it returns the state may
        be donated.  One that is still being written is waited for first.

        Args:
            state: The state.
            history: Of the run so far; its number of steps names the checkpoint.

        Raises:
            CheckpointError: it cannot be written, or the one before could not; in every process.
        """
        step = len(history.losses)
        self.wait()
        if self.is_complete(step):
            return
        self._agree(step, self._failure_of(self._prepare))
        if self._barrier is not None:
            self._barrier.begin()
        meta = ocp.args.JsonSave(meta_text(self._identity, history))
        args = ocp.args.Composite(state=ocp.args.PyTreeSave(state), meta=meta)
        failure = self._failure_of(lambda: self._manager.save(step, args=args, force=True))
        if failure and self._barrier is not None:
            self._barrier.leave()
        self._saving = step
        self._agree(step, failure)

    def wait(self) -> None:
        """Wait until what was saved is complete; in a job all processes call it.

        Raises:
            CheckpointError: it is not complete, and why; in every process.
        """
        if self._saving is not None:
            self._agree(self._saving, self._failure_of(self._manager.wait_until_finished))
            self._saving = None

    def settle(self) -> None:
        """Wait until nothing is being written any more, complete or not; for this process alone."""
        self._saving = None
        self._failure_of(self._manager.wait_until_finished)

    def restore(
        self, like: PyTree, on_damaged: OnDamaged = lambda _step, _path, _text: None
    ) -> tuple[PyTree, History]:
        """Read the newest checkpoint that is whole.

        Newer ones that are not are renamed to `<step>.damaged`, so that their steps can be saved
        again.  If none is whole all keep their names.

        Args:
            like: A state whose shapes, dtypes and shardings the result gets; in a job the number
                of steps of a `TrainState` can be read in every process.  Its arrays are deleted
                first, so that no device holds two states.
            on_damaged: Is told of each that was not taken.

        Returns:
            The state, and the history of its run.

        Raises:
            CheckpointError: there is none, none can be restored, or the newest that is whole is of
                a run with other settings.
        """
        self.wait()
        steps = self._agreed_steps()
        if not steps:
            raise CheckpointError(f"no checkpoint in {self._folder}")
        target = _target(like)
        damaged: dict[int, str] = {}
        for step in sorted(steps, reverse=True):
            try:
                found = self._restored(step, like, target)
            except _DamageError as error:
                damaged[step] = str(error)
                continue
            self._damaged |= damaged.keys()
            for other, text in damaged.items():
                on_damaged(other, self._set_aside(other), text)
            return found
        each = "\n".join(f"  step {step}: {text}" for step, text in damaged.items())
        raise CheckpointError(
            f"no checkpoint in {self._folder} can be restored:\n{each}\n"
            "give another --out, and keep this folder to look into it; or --fresh, which removes "
            "them and starts anew"
        )

    def has_whole(self, step: int) -> bool:
        """Return whether the newest checkpoint is of this step or a later one, and whole.

        All processes of a job call it.

        Args:
            step: How many steps are asked for.

        Raises:
            CheckpointError: it is of a run with other settings.
        """
        newest = max(self._agreed_steps(), default=0)
        if newest < step:
            return False
        try:
            self._verified(newest)
        except _DamageError:
            return False
        return True

    def _agreed_steps(self) -> list[int]:
        """Return the steps of all complete checkpoints, as process 0 of a job sees them."""
        steps = self._steps()
        if self._job is None:
            return steps
        topic = "the list of checkpoints"
        return json.loads(self._job.from_first(topic, lambda: json.dumps(steps)))

    def _verified(self, step: int) -> CheckpointMeta:
        """Return what a checkpoint says beside its arrays, if it is whole and of this run.

        Raises:
            _DamageError: it is not whole; in every process.
            CheckpointError: it is whole, and of a run with other settings.
        """
        found: list[CheckpointMeta] = []

        def verify() -> None:
            found.append(read_meta(self._folder, step))
            damage = self._damage_of_state(step, found[0])
            if damage:
                raise _DamageError(damage)

        self._agree_on(f"the checkpoint of step {step}", self._failure_of(verify))
        check_identity(self._folder, step, found[0].identity, self._identity)
        return found[0]

    def _restored(self, step: int, like: PyTree, target: PyTree) -> tuple[PyTree, History]:
        """Return what a checkpoint holds.

        Raises:
            _DamageError: it cannot be restored; in every process.
            CheckpointError: it is whole, and of a run with other settings.
        """
        meta = self._verified(step)
        for leaf in jax.tree.leaves(like):
            if not leaf.is_deleted():
                leaf.delete()
        state: list[PyTree] = []

        def read() -> None:
            how = ocp.checkpoint_utils.construct_restore_args(target)
            args = ocp.args.Composite(state=ocp.args.PyTreeRestore(target, how))
            state.append(self._manager.restore(step, args=args)["state"])
            if isinstance(like, TrainState) and int(state[0].step) != step:
                raise _DamageError(f"it holds the state of step {int(state[0].step)}")

        if self._job is None or not meta.has_checksums:
            self._agree_on(f"the checkpoint of step {step}", self._failure_of(read))
        else:
            # Its files are whole.  Orbax's processes wait for each other: what fails in one ends
            # the job, and the next start tries again.
            read()
        # Files do not say which types are weak, and steps for others are other programs.
        weak = [n for n, is_weak in enumerate(weak_types(jax.tree.leaves(like))) if is_weak]
        leaves, tree = jax.tree.flatten(state[0])
        return tree.unflatten(with_weak_types(leaves, weak)), meta.history

    def _damage_of_state(self, step: int, meta: CheckpointMeta) -> str:
        """Return what this process finds wrong with the files of the arrays; empty if nothing."""
        folder = self.path(step) / "state"
        if meta.has_checksums and not (folder / CHECKSUMS).exists():
            return f"no file {folder / CHECKSUMS}"
        if self._job is None:
            return damage_of(folder)
        return damage_of(folder, self._job.process, self._job.num_processes)

    def _set_aside(self, step: int) -> Path:
        """Rename a checkpoint so that Orbax does not see it, and return where it is."""

        def rename() -> str:
            path = self.path(step)
            taken = path.with_name(f"{step}.damaged")
            number = 1
            while taken.exists():
                number += 1
                taken = path.with_name(f"{step}.damaged-{number}")
            try:
                path.rename(taken)
            except OSError:
                return str(path)  # The folder takes no writes: saving will say so.
            return str(taken)

        topic = f"the name of the damaged checkpoint of step {step}"
        place = Path(rename() if self._job is None else self._job.from_first(topic, rename))
        if place != self.path(step):
            self._damaged.discard(step)
        return place

    def _prepare(self) -> None:
        """Write a file where the checkpoint will be; raises why that cannot be done."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            probe_writable(self._folder)
        except OSError as error:
            raise _DamageError(error.strerror or str(error)) from error  # Not the trial's name.
        # Orbax removes old ones that it knows: after a save that failed, or when the folder was
        # away, it has forgotten some.
        self._manager.reload()

    def _steps(self) -> list[int]:
        """Return the steps of all complete checkpoints."""
        return [step for step in steps_in(self._folder) if step not in self._damaged]

    def _failure_of(self, act: Callable[[], object]) -> str:
        """Do something and return why it failed, in a line; empty if it did not."""
        try:
            act()
        except OtherProcessError:
            return ""  # All get to know the cause from that process.
        except Exception as error:
            return " ".join(_told(error).split())[:_LINE_CHARS] or type(error).__name__
        return ""

    def _agree_on(self, topic: str, failure: str) -> None:
        """Let all processes of a job know of a failure in one.

        Raises:
            _DamageError: one process has failed, or several.
        """
        if self._job is None:
            texts = [failure]
        else:
            told = f"{failure} (in process {self._job.process})" if failure else ""
            texts = self._job.exchange(topic, told)
        first = next(filter(None, texts), None)
        if first is not None:
            raise _DamageError(first)

    def _agree(self, step: int, failure: str) -> None:
        """Let all processes of a job know that a save has failed in one.

        Raises:
            CheckpointError: it has; what was written of it is gone.
        """
        try:
            self._agree_on(f"saving the state of step {step}", failure)
        except _DamageError as error:
            self._saving = None
            self._forget(step)
            raise CheckpointError(
                f"the state of step {step} is not saved in {self._folder}: {error}"
            ) from error

    def _forget(self, step: int) -> None:
        """Remove what was written of a checkpoint."""
        self._failure_of(self._manager.wait_until_finished)
        if self._job is None or self._job.process == 0:
            shutil.rmtree(self._folder / f"{step}{_TEMPORARY}", ignore_errors=True)


class _DamageError(Exception):
    """Why a checkpoint cannot be read or written."""


def _target(like: PyTree) -> PyTree:
    """Return shapes, dtypes and shardings of a state, its number of steps in every process."""

    def abstract(leaf: jax.Array, where: Sharding | None = None) -> PyTree:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where or leaf.sharding)

    target: PyTree = jax.tree.map(abstract, like)
    if not isinstance(like, TrainState):
        return target
    readable = EveryProcess().place(like.step.ndim, like.step.sharding)
    return target._replace(step=abstract(like.step, readable))


def _told(error: Exception) -> str:
    """Return what an error says, and its kind where it does not say enough."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return str(error) if isinstance(error, _DamageError) else f"{type(error).__name__}: {error}"
