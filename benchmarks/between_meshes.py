"""AlpaComm's nine cases on virtual devices of this process, against `jax.device_put`."""

from __future__ import annotations

import math
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from evaluation.alpacomm.cases import CASES, Case
from jax.sharding import Mesh, NamedSharding

from benchmarks.pairs import run_pairs
from meshwise.runtime.transports.tile_copier import TileCopier
from meshwise.spmd.program import partition_spec

# The published tensors hold 2 GiB; each dim is this many times smaller here.
SMALLER, SMALLER_QUICK = 8, 32
NUM_PAIRS, NUM_PAIRS_QUICK = 60, 10
NAMES = ("x", "y")


def between_meshes(quick: bool) -> dict[str, Any]:
    """The asynchronous tile copier and `jax.device_put` on the nine cases of AlpaComm.

    Run it with `--devices 20` for all of them; cases that need more devices are listed. What is
    sent is computed anew each time, so that no value on the host is known from before.
    """
    done, left_out = {}, []
    for case in CASES:
        if math.prod(case.source) + math.prod(case.destination) > jax.device_count():
            left_out.append(case.name)
            continue
        done[case.name] = _measured(case, quick)
    return {"num_devices": jax.device_count(), "cases": done, "too_few_devices_for": left_out}


def _measured(case: Case, quick: bool) -> dict[str, Any]:
    smaller = SMALLER_QUICK if quick else SMALLER
    # Dims stay multiples of what splits them.
    shape = tuple(max(size // smaller // 24, 1) * 24 for size in case.shape)
    devices = np.array(jax.devices())
    first = math.prod(case.source)
    meshes = (
        Mesh(devices[:first].reshape(case.source), NAMES),
        Mesh(devices[first:][: math.prod(case.destination)].reshape(case.destination), NAMES),
    )
    before, after = (
        NamedSharding(mesh, partition_spec(layout, NAMES))
        for mesh, layout in zip(meshes, (case.before, case.after), strict=True)
    )
    given = jax.device_put(jnp.ones(shape, jnp.float32), before)
    made = jax.jit(lambda x: x * 1.5, in_shardings=before, out_shardings=before)
    copier = TileCopier()
    copies = copier.copies(given, after)

    def ours() -> None:
        copier.put(made(given), after).block_until_ready()

    def theirs() -> None:
        jax.device_put(made(given), after).block_until_ready()

    pairs = run_pairs(ours, theirs, num_pairs=NUM_PAIRS_QUICK if quick else NUM_PAIRS)
    return {
        "shape": list(shape),
        "num_bytes": given.nbytes,
        "crossing_bytes": copies.crossing_bytes,
        "copied_bytes": copies.copied_bytes,
        "dispatch_median_s": _dispatch_s(copier, made(given), after, 10 if quick else 50),
        **pairs.to_json(),
    }


def _dispatch_s(copier: TileCopier, value: jax.Array, after: NamedSharding, count: int) -> float:
    """Until `put` returns, with nothing else under way."""
    found: list[float] = []
    for _ in range(count):
        start = time.perf_counter()
        result = copier.put(value, after)
        found.append(time.perf_counter() - start)
        result.block_until_ready()
    return statistics.median(found)
