"""One process of a job in which the processes do not agree: each gets an error that says how."""

from __future__ import annotations

import os
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import meshwise as mw
from hosts.joined import join
from meshwise.api import distributed_cluster
from meshwise.errors import ClusterError, DataError, PinError, TransportError
from meshwise.runtime.job.job import current_job
from meshwise.runtime.transports.sockets import SocketTransport
from meshwise.runtime.transports.transport import Passage

STATE = {"w": np.ones((8, 8), np.float32)}
BATCH = {"x": np.ones((4, 8), np.float32)}


def step_with(rate: float) -> Any:
    """A step whose learning rate is in its code."""

    def train_step(state: Any, batch: Any) -> Any:
        loss, grads = mw.value_and_grad(lambda w: jnp.mean((batch["x"] @ w) ** 2))(state["w"])
        return {"w": state["w"] - rate * grads}, loss

    return train_step


def other_code(process: int) -> None:
    step = mw.parallelize(step_with(0.1 + 0.1 * process))
    with pytest.raises(ClusterError, match="the program is .* in process 0, .* in process 1"):
        step(STATE, BATCH)


def other_shapes(process: int) -> None:
    step = mw.parallelize(step_with(0.1))
    batch = {"x": np.ones((4 + 4 * process, 8), np.float32)}
    with pytest.raises(
        DataError, match=r"different values of .*\['x'\] .* float32\[4, 8\] .* in process"
    ):
        step(STATE, batch)
    state = {"w": STATE["w"].astype(np.float16 if process else np.float32)}
    with pytest.raises(ClusterError, match="the type of the arguments is"):
        step.plan(jax.eval_shape(lambda: state), BATCH)


def other_state(process: int) -> None:
    step = mw.parallelize(step_with(0.1))
    state = {"w": np.full((8, 8), process, np.float32)}
    with pytest.raises(DataError, match=r"different values of .*\['w'\] to .* in process 1"):
        step(state, BATCH)


def other_places(process: int) -> None:
    mesh = Mesh(np.array(jax.local_devices()), ("x",))
    state = jax.device_put(STATE, NamedSharding(mesh, PartitionSpec("x")))
    step = mw.parallelize(step_with(0.1))
    with pytest.raises(DataError, match=r"on devices \[0, 1\] in process 0, .* in process 1"):
        step(state, BATCH)


def uneven_rows(process: int) -> None:
    for rows in ((4, 4), (2, 2)):
        mw.host_batch({"x": np.ones((rows[process], 8), np.float32)})
    with pytest.raises(DataError, match="different parts: rows.* in process 0, .* in process 1"):
        mw.host_batch({"x": np.ones((2 + 2 * process, 8), np.float32)})


def another_step(process: int) -> None:
    one, other = mw.parallelize(step_with(0.1)), mw.parallelize(lambda w, x: w + jnp.sum(x))
    call = [lambda: one(STATE, BATCH), lambda: other(STATE["w"], BATCH["x"])][process]
    with pytest.raises(ClusterError, match="the processes have come apart: process"):
        call()


def no_plan(process: int) -> None:
    step = mw.parallelize(step_with(0.1), pins={"0/bias": PartitionSpec()})
    with pytest.raises(PinError, match="bias.*" if process == 0 else r"bias.*\(in process 0\)"):
        step(STATE, BATCH)


def too_few_devices(process: int) -> None:
    cluster = mw.Cluster.virtual("1x p3.16xlarge")
    step = mw.parallelize(step_with(0.1), method=mw.DataParallel(), cluster=cluster)
    with pytest.raises(ClusterError, match="needs 8 devices, the 2 processes have 4"):
        step(STATE, {"x": np.ones((8, 8), np.float32)})


def other_versions(process: int) -> None:
    found, real = {"jax": "9.9"}, distributed_cluster.version
    if process == 1:
        distributed_cluster.version = lambda name: found.get(name) or real(name)
    try:
        with pytest.raises(ClusterError, match=r"jax is .* in process 0, 9\.9 in process 1"):
            mw.Cluster.distributed()
    finally:
        distributed_cluster.version = real


def too_few_threads(process: int) -> None:
    before = os.environ["NPROC"]
    os.environ["NPROC"] = "3"
    try:
        with pytest.raises(ClusterError, match="set NPROC=4"):
            mw.Cluster.distributed()
    finally:
        os.environ["NPROC"] = before


def nothing_sent(process: int) -> None:
    """A pull that nobody answers ends, as an error that names the process."""
    job = current_job()
    assert job is not None
    transport = SocketTransport(job, patience_s=3.0)
    first = [next(d for d in jax.devices() if d.process_index == p) for p in range(2)]
    sent = jax.device_put(np.ones(4, np.float32), first[0]) if process == 0 else None

    def passage(key: int) -> Passage:
        return Passage(key=key, shape=(4,), dtype=np.dtype(np.float32), source=first[0],
                       destination=first[1], value=sent)  # fmt: skip

    (arrived,) = transport.pass_all([passage(1)], "a vector")
    if process == 1:
        assert np.asarray(arrived).tolist() == [1.0] * 4
        (pending,) = transport.pass_all([passage(2)], "another vector")
        with pytest.raises(jax.errors.JaxRuntimeError):
            jax.block_until_ready(pending)
        with pytest.raises(TransportError, match="waited 3 s for another vector from process 0"):
            transport.check()
    job.exchange("the end of the test", "")


CASES = (
    other_code,
    other_shapes,
    other_state,
    other_places,
    uneven_rows,
    another_step,
    no_plan,
    too_few_devices,
    other_versions,
    too_few_threads,
    nothing_sent,
)

if __name__ == "__main__":
    join()
    for case in CASES:
        case(jax.process_index())
        sys.stdout.write(f"passed {case.__name__}\n")
    # After all that a step still runs.
    state, loss = mw.parallelize(step_with(0.1))(STATE, BATCH)
    assert np.isfinite(float(loss))
    sys.stdout.write("passed all\n")
    jax.distributed.shutdown()
