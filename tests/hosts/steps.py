"""One process of a job that runs steps as users write them, on meshes and in stages.

Its arguments are the step, `layers` or `gpt`, and the transport if it is not the one that suits the
devices.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax

import meshwise as mw
import meshwise.api.parallel_step as parallel_step
from doubles.layered_steps import CLIPPED, gpt_step
from hosts.joined import join
from meshwise.runtime.job.job import Job, TransportName, current_job
from meshwise.simulate.timeline import Timeline
from oracle.problem import quick_jit


def close(found: Any, want: Any) -> None:
    """Compare every shard of this process with one device."""
    for mine, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(want), strict=True):
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
        if jnp.issubdtype(mine.dtype, jax.dtypes.prng_key):
            mine, theirs = map(jax.random.key_data, (mine, theirs))
        for shard in mine.addressable_shards:
            want_part = np.asarray(theirs)[shard.index]
            np.testing.assert_allclose(np.asarray(shard.data), want_part, rtol=0, atol=1e-8)


def layers_step() -> tuple[Any, tuple[Any, ...]]:
    """Layers with dropout from a key in the state, a norm of all gradients, and results to log."""

    def train_step(state: Any, batch: Any) -> Any:
        weights, opt, key, count = state

        def loss_fn(weights: Any) -> Any:
            x = batch["x"]
            for number, w in enumerate(weights):
                kept = jax.random.bernoulli(jax.random.fold_in(key, count + number), 0.8, x.shape)
                x = jnp.tanh(jnp.where(kept, x, 0.0) @ w)
            return jnp.mean((x - batch["y"]) ** 2), jnp.mean(x)

        (loss, mean), grads = mw.value_and_grad(loss_fn, has_aux=True)(weights)
        updates, opt = CLIPPED.update(grads, opt, weights)
        new = optax.apply_updates(weights, updates), opt, key, count + 1
        return new, loss, {"mean": mean, "norm": optax.tree.norm(updates)}

    rng = np.random.default_rng(0)
    weights = [jnp.asarray(rng.normal(size=(64, 64)) / 8) for _ in range(4)]
    state = weights, CLIPPED.init(weights), jax.random.key(1), jnp.int32(3)
    return train_step, (state, {name: jnp.asarray(rng.normal(size=(256, 64))) for name in "xy"})


STEPS = {"layers": layers_step, "gpt": lambda: gpt_step(CLIPPED, num_layers=2)}


def run(name: str, method: Any, **options: Any) -> Any:
    """Run three steps; return the parallel step and its arguments."""
    step, (state, batch) = STEPS[name]()
    parallel = mw.parallelize(step, method=method, **options)
    alone = quick_jit(step)
    # What is donated may be the very array that is given.
    mine, theirs = jax.tree.map(jnp.copy, state), state
    for _ in range(3):
        mine, loss, *_ = parallel(mine, batch)
        theirs, want, *_ = alone(theirs, batch)
        assert abs(float(loss) - float(want)) < 1e-8
    close(mine, theirs)
    return parallel, mine, batch


def job_with(transport: str) -> Job:
    """Return the job of this process with a transport."""
    job = current_job()
    assert job is not None
    return replace(job, transport=cast(TransportName, transport))


def donated_before_it_is_read() -> None:
    """A step donates what another mesh of another process has yet to fetch."""

    def loss(w: Any, x: Any) -> Any:
        return jnp.mean((x @ w) ** 2)

    def train_step(w: Any, x: Any) -> Any:
        value, gradient = mw.value_and_grad(lambda w: loss(w, x))(w)
        return w - 0.1 * gradient, value

    step = mw.parallelize(train_step, method=mw.Zero3())
    look = mw.parallelize(loss, method=mw.DataParallel(), donate_argnums=())
    w, x = np.eye(64) / 8, np.ones((8, 64))
    for number in range(3):
        if number and jax.process_index() == 1:
            time.sleep(0.5)
        seen = look(w, x)
        w, want = step(w, x)
        assert abs(float(seen) - float(want)) < 1e-8
    # Process 1 came late to all calls but the first.
    stats = look.stats()
    assert stats["slowest_host"] == str(stats["hosts"][1])


def told_of_all_hosts(stats: dict[str, Any], timeline: Timeline) -> None:
    """Every process is told the same of all; each runs a stage."""
    hosts = stats["hosts"]
    assert [host.process for host in hosts] == list(range(jax.process_count()))
    assert tuple(host.busy_s for host in hosts) == timeline.busy_s == stats["busy_s"]
    assert all(host.step_s > 0 and host.peak_bytes >= host.held_bytes > 2**20 for host in hosts)
    assert stats["slowest_host"] in {f"process {h.process} on {h.name}" for h in hosts}
    job = current_job()
    assert job is not None
    assert len(set(job.exchange("what all were told", repr(hosts)))) == 1


def everything(name: str) -> None:
    cluster = mw.Cluster.distributed()
    count = jax.process_count()
    assert cluster.num_hosts == count
    # One mesh over all processes, chosen, and by hand; and one that leaves a process out.
    run(name, mw.Auto())
    run(name, mw.Zero3(), num_microbatches=2)
    run(name, mw.IntraOp(mesh_shape=(2,)))
    # Stages, one process each.
    parallel, state, batch = run(
        name, mw.Auto(stages=count, schedule="1f1b"), num_microbatches=4, cluster=cluster
    )
    stats = parallel.stats()
    assert stats["measured_peak_bytes"] > 0
    (state, loss, *_), timeline = parallel.measured(state, batch)
    assert np.isfinite(float(loss))
    assert len(timeline.busy_s) == count
    assert all(busy > 0 for busy in timeline.busy_s)
    told_of_all_hosts(parallel.stats(), timeline)
    assert {(t.source_mesh, t.destination_mesh) for t in timeline.transfers} >= {(0, 1), (1, 0)}
    fidelity = parallel.fidelity(state, batch)
    for stage in fidelity:
        assert stage.planned_bytes == stage.compiled_bytes
    donated_before_it_is_read()
    # Followed by a step without gradients.
    step, (_, batch) = STEPS[name]()
    replayed = mw.parallelize(step, method=mw.Replay(parallel.plans[0]))
    again = replayed(state, batch)
    assert np.isfinite(float(again[1]))


if __name__ == "__main__":
    name, *transports = join()
    for transport in transports:
        parallel_step.current_job = lambda transport=transport: job_with(transport)
    with jax.enable_x64(True):
        everything(name)
    sys.stdout.write("passed\n")
    jax.distributed.shutdown()
