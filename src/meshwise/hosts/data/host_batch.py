"""Rows that each process has of its own become the arrays of a whole batch."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from meshwise.errors import DataError
from meshwise.runtime.host_rows import HostRows
from meshwise.runtime.job.agreement import disagreement
from meshwise.runtime.job.job import Job, current_job
from meshwise.runtime.placement import placed

# Processes come with a batch of a new shape together, or one of them has another shape.
_PATIENCE_S = 20.0


def host_batch(rows: Any, *, batch_dims: Any = 0) -> Any:
    """Return a batch of which each process of a job gives equally many rows.

    The rows of process p are the p-th part of the batch, as in
    `jax.make_array_from_process_local_data`.  They lie on all devices, and move from there to
    where a step wants them: `step.loader` reads them there at once.

    Args:
        rows: A pytree of NumPy arrays: the rows of this process.
        batch_dims: The batch dim: one for all leaves, or a pytree prefix of `rows`; None for a
            leaf that is not batch data, which stays as it is.

    Returns:
        A pytree of arrays of all processes; without a job `rows`.

    Raises:
        DataError: processes have different numbers of rows, shapes, dtypes or trees; a leaf has no
            such dim or lies in several processes already.
    """
    job = current_job()
    if job is None:
        return rows
    leaves, tree = jax.tree_util.tree_flatten_with_path(rows)
    dims = _dims(rows, batch_dims, len(leaves))
    parts = [
        value if dim is None else _Rows(f"rows{jax.tree_util.keystr(path)}", value, dim)
        for (path, value), dim in zip(leaves, dims, strict=True)
    ]
    _check_equal(job, tuple((part.name, part.text) for part in parts if isinstance(part, _Rows)))
    whole = (part.whole(job) if isinstance(part, _Rows) else part for part in parts)
    return jax.tree.unflatten(tree, list(whole))


class _Rows:
    """The rows of a leaf in this process."""

    def __init__(self, name: str, value: Any, dim: int) -> None:
        if isinstance(value, jax.Array) and not value.is_fully_addressable:
            raise DataError(f"{name} lies in several processes already; pass it to the step")
        self.name, self.array = name, np.asarray(value)
        rank = self.array.ndim
        if not -rank <= dim < rank:
            raise DataError(
                f"batch_dims says that dim {dim} of {name} is the batch, but its shape is "
                f"{list(self.array.shape)}; name one of these dims, from 0 on, or None if it is "
                "not batch data"
            )
        self.dim = dim % rank

    @property
    def text(self) -> str:
        """What must be equal in all processes."""
        return f"{self.array.dtype}{list(self.array.shape)} with rows along dim {self.dim}"

    def whole(self, job: Job) -> jax.Array:
        """Return the leaf of the whole batch."""
        count = self.array.shape[self.dim]
        shape = list(self.array.shape)
        shape[self.dim] *= job.num_processes
        pieces = [(job.process * count, self.array)]
        dtype = jax.typeof(self.array).dtype
        whole = HostRows(shape, dtype, dim=self.dim, pieces=pieces, name=self.name)
        return placed([whole], [_spread(self.dim, count)])[0]


def _dims(rows: Any, batch_dims: Any, count: int) -> list[int | None]:
    """Return the batch dim of each leaf."""
    if batch_dims is None or isinstance(batch_dims, int):
        return [batch_dims] * count
    # None is no leaf of a tree.
    marks = jax.tree.map(lambda d: "none" if d is None else d, batch_dims, is_leaf=_is_none)
    try:
        found = jax.tree.leaves(jax.tree.broadcast(marks, rows))
    except ValueError as error:
        raise DataError(
            f"batch_dims={batch_dims!r} does not fit the tree of the rows, "
            f"{jax.tree.structure(rows)}; give one number, or a tree with its keys"
        ) from error
    return [None if dim == "none" else dim for dim in found]


def _is_none(value: object) -> bool:
    return value is None


def _check_equal(job: Job, facts: tuple[tuple[str, str], ...]) -> None:
    """Compare shapes with the other processes: each knows its own, and not whether they are new."""
    topic = "a batch of mw.host_batch"
    found = disagreement(job, topic, dict(facts), patience_s=_PATIENCE_S)
    if found:
        raise DataError(
            f"the processes give mw.host_batch different parts: {'; '.join(found)}. Each process "
            "must give equally many rows, of one shape and dtype"
        )


def _spread(dim: int, count: int) -> NamedSharding:
    """Return where a batch lies with so many rows of each process: on devices of that process."""
    groups: dict[int, list[Any]] = defaultdict(list)
    for device in jax.devices():
        groups[device.process_index].append(device)
    devices = [groups[process] for process in sorted(groups)]
    if len(set(map(len, devices))) > 1:
        devices = [some[:1] for some in devices]
    mesh = Mesh(np.array(devices, object), ("process", "device"))
    parts = mesh.axis_names if count % len(devices[0]) == 0 else "process"
    return NamedSharding(mesh, PartitionSpec(*[None] * dim, parts))
