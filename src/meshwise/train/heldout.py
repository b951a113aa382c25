"""The loss on held-out text, under plain `jax.jit` on the devices that hold the parameters."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from meshwise.jax_compat.jaxprs import PyTree
from meshwise.train.corpus import Corpus
from meshwise.train.options import TrainOptions
from meshwise.train.parallel import HeldoutLoss
from meshwise.train.step import Batch, heldout_loss_of


def heldout_look(
    options: TrainOptions,
    corpus: Corpus,
    follow: Callable[[HeldoutLoss], HeldoutLoss] | None = None,
) -> Callable[[PyTree], float]:
    """Return the held-out loss of parameters.

    Whatever the plan does with the training batch, the held-out text is split over all devices
    and each parameter is gathered where it is used.  Parameters of several meshes, the stages of a
    pipeline, are copied to all of their devices before.

    Args:
        options: The options of the run.
        corpus: Has the text.
        follow: Parallelises the loss as the training step is, which several processes need; None:
            it runs as above.
    """
    heldout_loss = heldout_loss_of(options)
    if follow is not None:
        return partial(_followed_loss, options, corpus, follow(heldout_loss))
    compiled: Callable[[PyTree, Batch], jax.Array] | None = None

    def look(params: PyTree) -> float:
        nonlocal compiled
        rows, whole = _spread_shardings(params, options.batch)

        def loss(params: PyTree, batch: Batch) -> jax.Array:
            if whole is not None:
                params = jax.lax.with_sharding_constraint(params, whole)
            return heldout_loss(params, batch)

        if compiled is None:
            compiled = jax.jit(loss)
        params = on_one_mesh(params)
        batches = corpus.heldout_batches(
            num_batches=options.eval_batches, batch=options.batch, seq=options.seq
        )
        losses = [float(compiled(params, jax.device_put(dict(batch), rows))) for batch in batches]
        return statistics.fmean(losses)

    return look


def on_one_mesh(params: PyTree) -> PyTree:
    """Return parameters as they lie; those of several meshes whole on all of their devices.

    Args:
        params: Parameters.
    """
    if len({frozenset(x.sharding.device_set) for x in jax.tree.leaves(params)}) == 1:
        return params
    return jax.device_put(params, _spread_shardings(params, 1)[1])


def _followed_loss(
    options: TrainOptions, corpus: Corpus, loss: HeldoutLoss, params: PyTree
) -> float:
    """Return the mean of a parallelised loss."""
    batches = corpus.heldout_batches(
        num_batches=options.eval_batches, batch=options.batch, seq=options.seq
    )
    return statistics.fmean(float(loss(params, dict(batch))) for batch in batches)


def _spread_shardings(
    params: PyTree, batch: int
) -> tuple[NamedSharding | None, NamedSharding | None]:
    """Shardings of a batch over the devices that hold the parameters, and of a whole copy.

    None where nothing is to be spread: parameters without a mesh.  Rows stay whole if the devices
    do not divide the batch.
    """
    shardings = [leaf.sharding for leaf in jax.tree.leaves(params)]
    # In the order of the meshes: parameters of one mesh stay on its devices as they are numbered.
    devices = dict.fromkeys(
        device
        for sharding in shardings
        if isinstance(sharding, NamedSharding)
        for device in np.asarray(sharding.mesh.devices).flat
    )
    if not devices:
        return None, None
    mesh = Mesh(np.asarray([*devices]), ("batch",))
    rows = PartitionSpec("batch") if batch % mesh.size == 0 else PartitionSpec()
    return NamedSharding(mesh, rows), NamedSharding(mesh, PartitionSpec())
