"""How a step takes its batches: what its loader reads in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from meshwise.api.arguments import Binding, Call
from meshwise.api.same_arguments import batch_leaves
from meshwise.errors import DataError
from meshwise.hosts.data.loader import BatchUse, Loader, LoaderOptions
from meshwise.hosts.data.sources import Leaf
from meshwise.planner.step import UserStep
from meshwise.runtime.host_rows import HostRows
from meshwise.runtime.step_executable import StepExecutable


def loader_of(
    source: Any,
    binding: Binding,
    call: Call,
    user: UserStep,
    executable: StepExecutable,
    options: LoaderOptions,
    start: Mapping[str, Any] | None,
) -> Loader:
    """Return the loader of a step's batches.

    Args:
        source: The examples.
        binding: Which arguments are batch data.
        call: Arguments of the step, or their shapes.
        user: The step as it was traced.
        executable: What runs it.
        options: What the user asks.
        start: The state of an earlier loader.

    Raises:
        DataError: the step has no batch data, some of it has no rows, or different numbers of
            them; the source does not fit.
    """
    numbers = binding.signature.batch_argnums
    numbered = jax.tree.unflatten(user.in_tree, range(len(user.in_avals)))[0]
    positions = jax.tree.leaves([numbered[n] for n in numbers])
    if not positions:
        raise DataError(
            f"{binding.step_name} has no batch data to load; name its batch in batch_argnums"
        )
    names = dict(zip(positions, (name for name, _ in batch_leaves(binding, call)), strict=True))
    for position in positions:
        if position not in user.batch_dims:
            raise DataError(
                f"{names[position]} has no batch dim, so a loader has no rows of it; pass it to "
                f"{binding.step_name} as an argument of its own"
            )
    leaves = tuple(
        Leaf(
            name=names[position],
            shape=user.in_avals[position].shape,
            dtype=user.in_avals[position].dtype,
            dim=user.batch_dims[position],
        )
        for position in positions
    )
    sizes = {leaf.name: leaf.shape[leaf.dim] for leaf in leaves}
    if len(set(sizes.values())) > 1:
        told = ", ".join(f"{name} has {size}" for name, size in sizes.items())
        raise DataError(f"the leaves of a loader's batch must have equally many rows; {told}")
    spans = tuple(executable.rows_here(p, user.batch_dims[p]) for p in positions)
    arguments = tuple(call.args[n] for n in numbers)
    batch = arguments[0] if len(arguments) == 1 else arguments
    tree = jax.tree.structure(batch)

    def finish(found: Sequence[HostRows | np.ndarray[Any, Any]]) -> Any:
        ready = map(executable.ready, positions, found)
        return jax.tree.unflatten(tree, list(ready))

    use = BatchUse(
        tree=jax.tree.unflatten(tree, range(len(positions))),
        leaves=leaves,
        spans=spans,
        finish=finish,
    )
    return Loader(source, use, options, start)
