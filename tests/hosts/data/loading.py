"""One process of a job that trains on the batches of a loader, or on rows of its own.

Each argument is JSON: the name of a function, and what it takes.
"""

from __future__ import annotations

import json
import time
from functools import cache
from typing import Any

import jax
import numpy as np

import meshwise as mw
from doubles.examples import (
    ROWS,
    Counting,
    batch_spec,
    expected_losses,
    new_state,
    order,
    train_step,
    whole_batch,
)
from hosts.joined import join
from meshwise.runtime.host_rows import HostRows

SEED = 7


@cache
def step_of(kind: str) -> mw.ParallelStep:
    cluster = mw.Cluster.distributed()
    if kind == "pipeline":
        method: Any = mw.Auto(stages=2, schedule="1f1b")
        return mw.parallelize(train_step, method=method, cluster=cluster, num_microbatches=4)
    return mw.parallelize(train_step, method=mw.DataParallel(), cluster=cluster)


def batches_of(first: int, count: int) -> list[list[int]]:
    found = order(SEED, (first + count) * ROWS)
    return [found[n * ROWS : (n + 1) * ROWS] for n in range(first, first + count)]


def load(kind: str, first: int = 0, count: int = 4) -> dict[str, Any]:
    """Train on some batches from some batch on; each part of the examples is a source."""
    step = step_of(kind)
    sources = {name: Counting(name) for name in ("x", "y")}
    start = {"examples": first * ROWS, "num_examples": len(sources["x"]), "seed": SEED}
    state, batches, losses = new_state(), batches_of(first, count), []
    with step.loader(sources, state, batch_spec(), seed=SEED, prefetch=0, start=start) as loader:
        for _, batch in zip(range(count), loader, strict=False):
            state, loss = step(state, batch)
            losses.append(float(loss))
        rows, ended = loader.rows, loader.state()
    np.testing.assert_allclose(losses, expected_losses(batches), rtol=1e-5)
    assert ended["examples"] == (first + count) * ROWS
    read: dict[str, list[Any]] = {}
    for name, source in sources.items():
        (spans,) = (spans for leaf, spans in rows.items() if repr(name) in leaf)
        wanted = [b[n] for b in batches for start, stop in spans for n in range(start, stop)]
        assert sorted(source.read) == sorted(wanted), (source.read, wanted)
        read[name] = [list(span) for span in spans]
    return {"rows": read, "state": ended}


def whole_examples(kind: str) -> dict[str, Any]:
    """A source of whole examples is asked once for each row that is needed; threads read ahead."""
    step, source = step_of(kind), Counting()
    loader = step.loader(source, new_state(), batch_spec(), seed=SEED, epochs=1, prefetch=2)
    kinds = {type(leaf).__name__ for batch in loader for leaf in jax.tree.leaves(batch)}
    spans = set(loader.rows.values())
    rows = {n for some in spans for span in some for n in range(*span)}
    wanted = [batch[n] for batch in batches_of(0, 2) for n in rows]
    assert sorted(source.read) == sorted(wanted), (source.read, wanted)
    return {"kinds": sorted(kinds)}


def own_rows(kind: str) -> dict[str, Any]:
    """Each process gives its part of the batch."""
    step, state, losses = step_of(kind), new_state(), []
    process, count = jax.process_index(), jax.process_count()
    batches = batches_of(0, 3)
    for examples in batches:
        whole = whole_batch(examples)
        part = ROWS // count
        mine = {name: x[process * part : (process + 1) * part] for name, x in whole.items()}
        batch = mw.host_batch(mine)
        for name, array in batch.items():
            assert array.shape == whole[name].shape
            for shard in array.addressable_shards:
                np.testing.assert_array_equal(np.asarray(shard.data), whole[name][shard.index])
        state, loss = step(state, batch)
        losses.append(float(loss))
    np.testing.assert_allclose(losses, expected_losses(batches), rtol=1e-5)
    return {}


def different_rows(kind: str) -> dict[str, Any]:
    """Each process takes its own rows for the batch: found at the first call of a step."""
    step, start_s = step_of(kind), time.monotonic()
    mine = whole_batch([jax.process_index() * ROWS + n for n in range(ROWS)])
    return {"error": error_of(step, new_state(), mine), "seconds": time.monotonic() - start_s}


def other_dims(_: str) -> dict[str, Any]:
    """Rows along other dims, and what is not batch data."""
    process, count = jax.process_index(), jax.process_count()
    x, y = np.arange(24.0, dtype=np.float32).reshape(3, 8), np.arange(8)
    part = 8 // count
    mine = slice(process * part, (process + 1) * part)
    batch = mw.host_batch((x[:, mine], {"y": y[mine], "k": 5}), batch_dims=(1, {"y": 0, "k": None}))
    for array, whole in ((batch[0], x), (batch[1]["y"], y)):
        assert array.shape == whole.shape
        for shard in array.addressable_shards:
            np.testing.assert_array_equal(np.asarray(shard.data), whole[shard.index])
    assert batch[1]["k"] == 5
    told = error_of(lambda: mw.host_batch({"x": x}, batch_dims={"y": 0}))
    return {"error": told, "dim": error_of(lambda: mw.host_batch(x, batch_dims=2))}


def unequal_parts(_: str) -> dict[str, Any]:
    """Processes give different numbers of rows."""
    return {"error": error_of(mw.host_batch, np.ones((2 + jax.process_index(), 3)))}


def another_loader(kind: str) -> dict[str, Any]:
    """Rows are absent that a step needs."""
    rows = HostRows((ROWS, 8), np.float32, dim=0, pieces=(), name="the batch")
    return {"error": error_of(step_of(kind), new_state(), {"x": rows, "y": rows})}


def error_of(function: Any, *args: Any) -> str:
    try:
        function(*args)
    except mw.errors.DataError as error:
        return str(error)
    raise AssertionError("there is no error")


if __name__ == "__main__":
    for text in join():
        asked = json.loads(text)
        found = globals()[asked.pop("do")](asked.pop("kind"), **asked)
        print("found", json.dumps(found), flush=True)  # noqa: T201 (for the test that reads it)
    jax.distributed.shutdown()
