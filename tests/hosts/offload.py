"""One process of a job that keeps state in the memory of its host: the bits are those without."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import jax
import numpy as np

import meshwise as mw
from doubles.adam_step import ADAM, adam_step
from hosts.joined import join

WIDTHS = (16, 32, 8)


def ran(method: mw.Auto) -> tuple[mw.Plan, list[jax.Array]]:
    """The plan of three steps, and the leaves of the state after them."""
    rng = np.random.default_rng(0)
    weights = [rng.normal(size=s).astype(np.float32) / 4 for s in itertools.pairwise(WIDTHS)]
    state: Any = (weights, jax.tree.map(np.asarray, ADAM.init(weights)))
    step = mw.parallelize(adam_step(), method=method, num_microbatches=2)
    for _ in range(3):
        x = rng.normal(size=(32, 16)).astype(np.float32)
        state, _ = step(state, {"x": x, "y": x[:, :8]})
    return step.plans[-1], jax.tree.leaves(state)


def main() -> None:
    join()
    for method in (mw.Auto(), mw.Auto(stages=2, schedule="1f1b")):
        _, expected = ran(replace(method, offload=False))
        plan, found = ran(replace(method, offload=True))
        in_host = [leaf for leaf in found if leaf.sharding.memory_kind == "pinned_host"]
        assert len(in_host) == 2 * (len(WIDTHS) - 1)
        assert any(argument.in_host for stage in plan.stages for argument in stage.arguments)
        for a, b in zip(found, expected, strict=True):
            for mine, other in zip(a.addressable_shards, b.addressable_shards, strict=True):
                assert mine.index == other.index
                assert np.asarray(mine.data).tobytes() == np.asarray(other.data).tobytes()
    print("passed")  # noqa: T201


if __name__ == "__main__":
    main()
