"""One process of a job whose step is called with batches of two sizes: its state stays in place."""

from __future__ import annotations

import itertools
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np

import meshwise as mw
from doubles.adam_step import ADAM, adam_step
from hosts.joined import join
from meshwise.runtime import kept_programs

WIDTHS = (16, 32, 8)
SIZES = (8, 256, 8)
STAGED = mw.Auto(stages=2, schedule="1f1b")


def state() -> Any:
    rng = np.random.default_rng(0)
    weights = [rng.normal(size=s).astype(np.float32) / 4 for s in itertools.pairwise(WIDTHS)]
    return weights, jax.tree.map(np.asarray, ADAM.init(weights))


def batches() -> list[Any]:
    rng = np.random.default_rng(1)
    rows = [rng.normal(size=(size, 16)).astype(np.float32) for size in SIZES]
    return [{"x": x, "y": x[:, :8]} for x in rows]


def ran(method: mw.Auto) -> None:
    step, alone = mw.parallelize(adam_step(), method=method, num_microbatches=2), adam_step()
    here, wanted = state(), state()
    first: list[Any] = []
    for batch in batches():
        here, loss = step(here, batch)
        wanted, expected = jax.jit(alone)(wanted, batch)
        found = jax.tree.leaves(here)
        first = first or [leaf.sharding for leaf in found]
        assert [leaf.sharding for leaf in found] == first
        np.testing.assert_allclose(float(loss), float(expected), rtol=1e-5)
    for mine, other in zip(jax.tree.leaves(here), jax.tree.leaves(wanted), strict=True):
        for shard in mine.addressable_shards:
            part = np.asarray(other)[shard.index]
            np.testing.assert_allclose(np.asarray(shard.data), part, rtol=1e-4, atol=1e-6)
    assert len(step.plans) == 2


def main() -> None:
    join()
    # As in a job of a user who gave JAX no folder for executables.
    jax.config.update("jax_compilation_cache_dir", None)
    folder = Path(tempfile.mkdtemp())
    kept_programs.user_cache = lambda: folder
    try:
        for method in (mw.Auto(), STAGED):
            ran(method)
        # Process 0 writes, and reads what it wrote in another run of the same programs.
        assert any(folder.glob("*/*-cache")) == (jax.process_index() == 0)
        jax.clear_caches()
        ran(STAGED)
    finally:
        shutil.rmtree(folder)
    print("passed")  # noqa: T201
    sys.stdout.flush()


if __name__ == "__main__":
    main()
