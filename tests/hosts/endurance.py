"""One process of a job that runs a small pipeline, a stage a process, for many steps.

Its arguments are the number of steps, and `steady` and a transport, or `delays` and a seed.  Under
`steady` it looks at what the process holds.  Under `delays` every process waits random times before
instructions and transfers, and what goes to the servers of transfers passes through a relay that
holds it up.
"""

from __future__ import annotations

import dataclasses
import gc
import os
import random
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import meshwise as mw
import meshwise.api.parallel_step as parallel_step
import meshwise.runtime.pipeline.make_pipeline as make_pipeline
from hosts.joined import join
from hosts.relay import Relay
from meshwise.program.instructions import Instruction
from meshwise.runtime.device_memory import resident_bytes
from meshwise.runtime.job.job import Job, current_job
from meshwise.runtime.pipeline.interpreter import PipelineStep
from meshwise.runtime.transports.choice import transport_of
from meshwise.runtime.transports.transport import Passage, Transport
from oracle.problem import quick_jit

WIDTH, ROWS, NUM_LAYERS = 8, 8, 8
LOOK_EVERY = 500
# What a process may hold more than after the first look.  A leak of one small array a step, or of
# what Python keeps for it, would be some MiB.
MORE_BYTES = 3 * 2**20


def problem() -> tuple[Any, Any, Any]:
    """Return a step, its state and its batch."""
    rng = np.random.default_rng(0)
    params = [rng.normal(size=(WIDTH, WIDTH)) / 3 for _ in range(NUM_LAYERS)]
    batch = {name: rng.normal(size=(ROWS, WIDTH)) for name in ("x", "y")}
    tx = optax.sgd(0.005, momentum=0.5)

    def train_step(state: Any, batch: Any) -> Any:
        def loss_fn(params: Any) -> Any:
            x = batch["x"]
            for w in params:
                x = jnp.tanh(x @ w)
            return jnp.mean((x - batch["y"]) ** 2)

        loss, grads = mw.value_and_grad(loss_fn)(state[0])
        updates, opt = tx.update(grads, state[1], state[0])
        return (optax.apply_updates(state[0], updates), opt), loss

    return train_step, (params, tx.init(params)), batch


def holdings() -> dict[str, int]:
    """Return what this process holds, when the transport has seen that all arrays are there."""
    time.sleep(2.5)
    gc.collect()
    return {
        "bytes": resident_bytes() or 0,
        "arrays": len(jax.live_arrays()),
        "threads": threading.active_count(),
        "native threads": len(os.listdir("/proc/self/task")),
        "files": len(os.listdir("/proc/self/fd")),
    }


def many_steps(num_steps: int) -> list[dict[str, int]]:
    """Run steps, compare them with one device, and return what was held from time to time."""
    step, state, batch = problem()
    parallel = mw.parallelize(
        step,
        method=mw.Auto(stages=jax.process_count()),
        cluster=mw.Cluster.distributed(),
        num_microbatches=4,
    )
    alone = quick_jit(step)
    mine, theirs = state, state
    found: list[dict[str, int]] = []
    for number in range(1, num_steps + 1):
        mine, loss = parallel(mine, batch)
        theirs, want = alone(theirs, batch)
        if number % 10 == 0:
            assert abs(float(loss) - float(want)) < 1e-8, number
        if number % LOOK_EVERY == 0:
            jax.block_until_ready((mine, theirs))
            found.append(holdings())
            sys.stdout.write(f"step {number}: {found[-1]}\n")
            sys.stdout.flush()
    for leaf, other in zip(jax.tree.leaves(mine), jax.tree.leaves(theirs), strict=True):
        for shard in leaf.addressable_shards:
            part = np.asarray(other)[shard.index]
            np.testing.assert_allclose(np.asarray(shard.data), part, rtol=0, atol=1e-8)
    return found


def steady(num_steps: int, transport: str) -> None:
    job = own_job(Job, transport=transport)
    parallel_step.current_job = lambda: job
    first, *others = many_steps(num_steps)
    last = others[-1]
    more = last.pop("bytes") - first.pop("bytes")
    sys.stdout.write(f"grew by {more / 2**20:.2f} MiB\n")
    assert more < MORE_BYTES
    # Connections that only the start needs may close late.
    assert all(last[name] <= first[name] for name in first), (first, last)


class DelayedTransport:
    """A transport that waits a random time before everything that it passes."""

    def __init__(self, transport: Transport, rng: random.Random) -> None:
        self._transport, self._rng = transport, rng

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def pass_all(self, passages: Sequence[Passage], label: str) -> list[Any]:
        found: list[Any] = []
        for passage in passages:
            wait(self._rng)
            found += self._transport.pass_all([passage], label)
        return found


def own_job(kind: type[Job], **changes: Any) -> Job:
    """Return the job of this process, as another kind and with changes."""
    job = current_job()
    assert job is not None
    fields = {field.name: getattr(job, field.name) for field in dataclasses.fields(job)}
    return kind(**fields | changes)


class RelayedJob(Job):
    """A job whose processes reach each other's servers of transfers through relays only."""

    def publish(self, name: str, text: str) -> None:
        if name.startswith("the address of transfers"):
            text = Relay(text, seed=self.process).address
        super().publish(name, text)


def wait(rng: random.Random) -> None:
    """Wait some milliseconds, now and then many."""
    if rng.random() < 0.3:
        time.sleep(rng.expovariate(1 / (0.05 if rng.random() < 0.02 else 0.003)))


def delays(num_steps: int, seed: int) -> None:
    rng = random.Random(seed * 100 + jax.process_index())
    job = own_job(RelayedJob)
    parallel_step.current_job = lambda: job
    make_pipeline.transport_of = lambda job: DelayedTransport(transport_of(job), rng)
    plain = PipelineStep.step

    def delayed(self: PipelineStep, mesh: int, instruction: Instruction) -> None:
        wait(rng)
        plain(self, mesh, instruction)

    PipelineStep.step = delayed  # type: ignore[method-assign]
    began = time.perf_counter()
    many_steps(num_steps)
    sys.stdout.write(f"{num_steps} steps in {time.perf_counter() - began:.0f} s\n")


if __name__ == "__main__":
    count, kind, option = join()
    with jax.enable_x64(True):
        if kind == "steady":
            steady(int(count), option)
        else:
            delays(int(count), int(option))
    sys.stdout.write("passed\n")
    jax.distributed.shutdown()
