"""One process of a job of `meshwise launch`: says on what it listens after each thing that it does.

Its argument is a folder, for what it says, and in which it waits for the file `seen`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

import meshwise as mw
from bad_input.pipelines import WEIGHTS, once
from hosts.listeners import listening_of
from meshwise.runtime.devices import array_of

LIMIT_S = 60.0


def main(folder: Path) -> None:
    """Join the job, use its devices, run a step in two stages, put an array on another's device."""
    me = os.getpid()
    seen = listening_of(me)
    told: dict[str, list[tuple[str, int]]] = {"start": sorted(seen)}

    def note(what: str) -> None:
        nonlocal seen
        now = listening_of(me)
        told[what] = sorted(now - seen)
        seen = now

    jax.distributed.initialize()
    note("joined")
    first, second = jax.devices()
    note("devices")
    rows = np.linspace(1.0, -0.5, 32, dtype=np.float32).reshape(8, 4)
    step = mw.parallelize(
        once,
        method=mw.Auto(stages=2, schedule="1f1b"),
        num_microbatches=2,
        cluster=mw.Cluster.distributed(),
    )
    state, _ = step(step.init(lambda: WEIGHTS, rows), rows)
    jax.block_until_ready(state)
    note("step")
    spec = jax.ShapeDtypeStruct((4,), jnp.float32, sharding=SingleDeviceSharding(first))
    own = [jax.device_put(np.arange(4, dtype=np.float32), first)] * (jax.process_index() == 0)
    put = jax.device_put(array_of(spec, own), SingleDeviceSharding(second))
    jax.block_until_ready(put)
    note("put")
    names = ("MESHWISE_COORDINATOR", "MESHWISE_TRANSFER_SOCKET")
    said = {"pid": me, "listens": told} | {name: os.environ[name] for name in names}
    (folder / f"{jax.process_index()}.part").write_text(json.dumps(said))
    (folder / f"{jax.process_index()}.part").rename(folder / f"{jax.process_index()}.json")
    end = time.monotonic() + LIMIT_S
    while not (folder / "seen").exists() and time.monotonic() < end:
        time.sleep(0.05)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
