"""Arrays that live in some processes of a job only, for Orbax.

In a pipeline over the processes of a job, a leaf of the state lies on the devices of one stage.
Orbax saves and restores arrays that every process has a part of: it refuses an array that lies in
one process, and one without any part in this process.  The handler here describes such arrays to
Orbax in every process alike, so that each process writes and reads its own parts.  Files are those
of Orbax, and any other handler for arrays reads them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import Sharding
from orbax.checkpoint import future, type_handlers

from meshwise.errors import CheckpointError
from meshwise.runtime.job.job import current_job
from meshwise.train.checkpoint_trees import as_plain_tree, in_structure_of, make_keys_plain
from meshwise.train.checksums import damage_of, sum_all_files, sum_own_files

# No rule of Orbax for replicas picks it.
_NO_REPLICA = 2**31


def checkpoint_handler(*, verify: bool = True) -> ocp.PyTreeCheckpointHandler:
    """Return the handler with which Orbax saves and restores the state of a step in a job.

    It is for `ocp.args.PyTreeSave` and `ocp.args.PyTreeRestore`.  All processes of the job save and
    restore together, in a folder that all see.  An array that each process has for itself is saved
    once, so it must be the same in all.  Keys are restored as keys where the target says so.
    Orbax writes in the background: the state may be donated as soon as `save` returns.
    `checksums.json` is written with the arrays, and what is restored is compared with it first.

    ```python
    manager = ocp.CheckpointManager(folder, item_handlers=mw.checkpoint_handler())
    manager.save(number, args=ocp.args.PyTreeSave(state))

    state = step.init(create_state, key, batch)  # For its shapes and shardings.
    target = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
    )
    restore_args = ocp.checkpoint_utils.construct_restore_args(target)
    state = manager.restore(number, args=ocp.args.PyTreeRestore(target, restore_args=restore_args))
    ```

    Args:
        verify: Whether to compare files with their checksums before they are restored; a damaged
            one is a `CheckpointError` in every process.  What was saved without checksums is not
            compared.

    Returns:
        A new handler.
    """
    registry = type_handlers.create_type_handler_registry(
        *((kind, type_handlers.ScalarHandler()) for kind in (int, float, bytes, np.number)),
        (np.ndarray, type_handlers.NumpyHandler()),
        (str, type_handlers.StringHandler()),
        (jax.Array, StageArrayHandler()),
    )
    return ocp.PyTreeCheckpointHandler(
        type_handler_registry=registry, handler_impl=_SummedHandler(registry, verify=verify)
    )


class _SummedHandler(ocp.BasePyTreeCheckpointHandler):
    """Orbax's handler of pytrees, with checksums of its files, for nodes of any keys."""

    def __init__(self, registry: Any, *, verify: bool) -> None:
        """Save and restore leaves as the registry says.

        Args:
            registry: For each type of a leaf its handler.
            verify: Whether to compare files with their checksums before they are restored.
        """
        super().__init__(type_handler_registry=registry)
        self._verify = verify

    async def async_save(self, directory: Any, args: Any) -> list[Any] | None:
        """Begin to write, and then to sum up what this process wrote."""
        begun = await super().async_save(directory, args)
        # A folder in a bucket may not have its name yet; then `finalize` sums up all.
        if not begun or not isinstance(directory, os.PathLike):
            return begun
        sum_up = partial(sum_own_files, directory, jax.process_index())  # type: ignore[arg-type]
        return [future.ChainedFuture(begun, sum_up)]

    def finalize(self, directory: Any) -> None:
        """Merge what the processes wrote, and sum up the rest; in one process only."""
        super().finalize(directory)
        sum_all_files(directory)

    def restore(self, directory: Any, args: Any = None) -> Any:
        """Restore; raises `CheckpointError` if a file is not what was written."""
        if self._verify:
            check_files(directory)
        if args is None or args.item is None:
            return super().restore(directory, args)
        item, how = as_plain_tree(args.item), as_plain_tree(args.restore_args)
        found = super().restore(directory, replace(args, item=item, restore_args=how))
        return in_structure_of(args.item, found)

    async def _read_metadata_file(self, directory: Any) -> Any:
        """Return what Orbax has written of the tree (Orbax 0.12, which has no public way to it)."""
        metadata = await super()._read_metadata_file(directory)
        make_keys_plain(metadata.tree_metadata_entries)
        return metadata


def check_files(folder: Any) -> None:
    """Compare the files of an item with their checksums; the processes of a job share them out.

    Args:
        folder: Of the item.

    Raises:
        CheckpointError: in every process, if one has found a file that is damaged.
    """
    job = current_job()
    if job is None:
        found = [damage_of(folder)]
    else:
        mine = damage_of(folder, job.process, job.num_processes)
        found = job.exchange(f"the files of {folder}", mine)
    damage = next(filter(None, found), None)
    if damage is not None:
        raise CheckpointError(f"{folder} is damaged: {damage}")


class StageArrayHandler(type_handlers.ArrayHandler):
    """Saves and restores arrays, wherever in a job they lie."""

    async def serialize(
        self,
        values: Sequence[jax.Array],
        infos: Sequence[Any],
        args: Sequence[Any] | None = None,
    ) -> Sequence[Any]:
        """Begin to write the parts that this process has.

        Args:
            values: The arrays.
            infos: What Orbax knows of each.
            args: How each is saved.

        Returns:
            Futures that are done when the parts are written.
        """
        if jax.process_count() > 1:
            values = [_InJob(value) for value in values]  # type: ignore[misc]
        return await super().serialize(values, infos, args)

    async def deserialize(
        self, infos: Sequence[Any], args: Sequence[Any] | None = None
    ) -> Sequence[jax.Array]:
        """Read the parts that this process gets.

        Args:
            infos: What Orbax knows of each array.
            args: How each is restored.

        Returns:
            The arrays.
        """
        args = args or [ocp.ArrayRestoreArgs()] * len(infos)
        elsewhere = [n for n, arg in enumerate(args) if _is_elsewhere(arg)]
        here = sorted(set(range(len(args))) - set(elsewhere))
        found: dict[int, jax.Array] = {}
        if here:
            read = await super().deserialize([infos[n] for n in here], [args[n] for n in here])
            found.update(zip(here, read, strict=True))
        if elsewhere:
            stored = await self.metadata([infos[n] for n in elsewhere])
            for n, metadata in zip(elsewhere, stored, strict=True):
                found[n] = _without_parts(args[n], metadata)
        return [_key_if_asked(found[n], arg) for n, arg in enumerate(args)]


class _InJob:
    """An array of a job, as every process describes it to Orbax."""

    is_fully_addressable = False

    def __init__(self, array: jax.Array) -> None:
        """Remember the array; a key is saved as its numbers.

        Args:
            array: May lie in other processes only.
        """
        self._array = jax.random.key_data(array) if _is_key(array.dtype) else array

    def __getattr__(self, name: str) -> Any:
        """Return what the array says."""
        return getattr(self._array, name)

    @property
    def addressable_shards(self) -> Sequence[Any]:
        """The parts in this process, or one that tells Orbax the shape of a part, to be skipped."""
        shape = self._array.sharding.shard_shape(self._array.shape)
        described = _ShardElsewhere(jax.ShapeDtypeStruct(shape, self._array.dtype))
        return self._array.addressable_shards or [described]


@dataclass(frozen=True, slots=True)
class _ShardElsewhere:
    """The shape of a part that another process writes.

    Attributes:
        data: Shape and dtype.
        replica_id: No replica that is written.
        index: Nowhere.
    """

    data: jax.ShapeDtypeStruct
    replica_id: int = _NO_REPLICA
    index: None = None


def _is_elsewhere(arg: Any) -> bool:
    """Return whether a process gets nothing of an array that is restored so."""
    sharding = getattr(arg, "sharding", None)
    return isinstance(sharding, Sharding) and not sharding.addressable_devices


def _without_parts(arg: Any, metadata: Any) -> jax.Array:
    """Return an array that lies in other processes only."""
    is_key = _is_key(arg.dtype)
    shape = metadata.shape if arg.global_shape is None else arg.global_shape
    dtype = metadata.dtype if is_key or arg.dtype is None else arg.dtype
    return jax.make_array_from_single_device_arrays(tuple(shape), arg.sharding, [], dtype=dtype)


def _key_if_asked(array: jax.Array, arg: Any) -> jax.Array:
    """Return an array as a key if one is restored and only its numbers are stored."""
    asked = getattr(arg, "dtype", None)
    if not _is_key(asked) or _is_key(array.dtype):
        return array
    return jax.random.wrap_key_data(array, impl=asked)


def _is_key(dtype: Any) -> bool:
    return dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)
