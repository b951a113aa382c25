"""The first call of a step with executables on disk against one that compiles all of them.

Each start is a process of its own.  CPU seconds count, which depend least on what else the machine
does; imports do not.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax

import meshwise as mw
from benchmarks.pairs import PairedTimes
from benchmarks.workload import token_batch, training_step
from meshwise.cluster.cpu import cpu_cluster
from meshwise.models.sizes.gpt_sizes import gpt_config

NUM_DEVICES = 4
ROWS = 16
OPTIONS: dict[str, dict[str, Any]] = {
    "one mesh": {},
    "two stages": {"method": mw.Auto(stages=2), "num_microbatches": 4},
}


def second_start(quick: bool) -> dict[str, Any]:
    """Goal: with executables on disk a pipeline is compiled and first run in a third."""
    num_pairs = 1 if quick else 5
    return {name: _pairs(name, num_pairs) for name in OPTIONS}


def _pairs(name: str, num_pairs: int) -> dict[str, Any]:
    found: list[tuple[dict[str, float], dict[str, float]]] = []
    num_bytes = 0
    for _ in range(num_pairs):
        with tempfile.TemporaryDirectory() as folder:
            first, second = _started(name, folder), _started(name, folder)
            num_bytes = sum(path.stat().st_size for path in Path(folder).iterdir())
        assert first["loss"] == second["loss"]
        found.append((second, first))
    return {"num_bytes": num_bytes} | {
        part: PairedTimes(
            ours_s=tuple(second[part] for second, _ in found),
            theirs_s=tuple(first[part] for _, first in found),
        ).to_json()
        for part in ("plan_s", "first_call_s")
    }


def _started(name: str, folder: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.second_start", name],
        env=os.environ | {"JAX_COMPILATION_CACHE_DIR": folder, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    return json.loads(done.stdout.splitlines()[-1])


def _start(name: str) -> dict[str, float]:
    """Plan a step, then compile and run it; CPU seconds of both."""
    jax.config.update("jax_num_cpu_devices", NUM_DEVICES)
    config = gpt_config("tiny", num_layers=8)
    step, create = training_step(config)
    state, batch = create(jax.random.key(0)), token_batch(config, ROWS)
    parallel = mw.parallelize(step, cluster=cpu_cluster(NUM_DEVICES), **OPTIONS[name])
    times = [time.process_time()]
    parallel.plan(state, batch)
    times.append(time.process_time())
    _, loss = parallel(state, batch)
    return {
        "loss": float(loss),
        "plan_s": times[1] - times[0],
        "first_call_s": time.process_time() - times[1],
    }


if __name__ == "__main__":
    print(json.dumps(_start(sys.argv[1])))
