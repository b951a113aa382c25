"""A plan warns of what may surprise, in one line that names a remedy, and of nothing else."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import meshwise as mw

CLUSTER = mw.Cluster.virtual("1x p3.8xlarge")


def step(weights: Any, batch: Any) -> Any:
    """Two dense layers, gradient descent."""

    def loss_fn(weights: Any) -> Any:
        hidden = jnp.tanh(batch @ weights[0])
        return jnp.mean((hidden @ weights[1] - batch) ** 2)

    loss, gradients = mw.value_and_grad(loss_fn)(weights)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), loss


def warnings_of(width: int, rows: int, **options: Any) -> str:
    weights = [jax.ShapeDtypeStruct((width, width), "float32")] * 2
    batch = jax.ShapeDtypeStruct((rows, width), "float32")
    return "\n".join(mw.parallelize(step, cluster=CLUSTER, **options).plan(weights, batch).warnings)


def test_a_batch_that_devices_cannot_divide() -> None:
    by_data = mw.DataParallel()
    told = "every device holds all 1023 rows of the batch: they cannot be divided by 4 devices"
    assert told in warnings_of(1024, 1023, method=by_data)
    assert "holds all" not in warnings_of(1024, 1024, method=by_data)
    # It was asked for: nothing of the batch is split where all devices split the weights.
    assert "holds all" not in warnings_of(1024, 1023, method=mw.Megatron(dp=1, tp=4))


def test_devices_that_a_mesh_leaves_out() -> None:
    told = "; devices 2 to 3 are not used"
    found = warnings_of(1024, 1024, method=mw.Megatron(dp=2, tp=1))
    assert f"the mesh 2x1 has the first 2 of the 4 devices of {CLUSTER.name}{told}" in found
    assert told in warnings_of(1024, 1024, method=mw.IntraOp(mesh_shape=(2, 1)))
    assert "are not used" not in warnings_of(1024, 1024, method=mw.Megatron(dp=2, tp=2))


def test_a_step_that_is_mostly_collectives() -> None:
    told = "collectives; with a larger batch, or on fewer devices, this share is smaller"
    assert told in warnings_of(1024, 4, method=mw.DataParallel())
    assert told not in warnings_of(1024, 65536, method=mw.DataParallel())


@pytest.mark.parametrize("count", [1, 4])
def test_stages_that_compute_one_after_the_other(count: int) -> None:
    method = mw.Auto(stages=2, schedule="1f1b")
    found = warnings_of(256, 64, method=method, num_microbatches=count)
    told = "one micro-batch goes through 2 stages, so they compute one after the other; num_micro"
    assert (told in found) == (count == 1)


def test_stages_whose_work_is_mostly_replicated() -> None:
    method = mw.Auto(stages=2, schedule="1f1b")
    # One row has no part for each of two devices, and the layers are small.
    found = warnings_of(8, 2, method=method, num_microbatches=2)
    assert "of bytes run whole on every device of its stage; the largest is" in found
    assert "run whole" not in warnings_of(4096, 4096, method=method)
