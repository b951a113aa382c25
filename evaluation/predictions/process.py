"""What runs on each host: `process.py CLUSTER SETTINGS STEPS` plans settings and runs their steps.

Process 0 prints a line of JSON for each, after `MEASURED`.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import jax
import numpy as np

from evaluation.predictions.settings import Setting
from meshwise.cluster.spec import ClusterSpec

MEASURED = "measured "
_WARM_STEPS = 2


def run(setting: Setting, cluster: ClusterSpec, num_steps: int) -> dict[str, Any]:
    """Plan a setting and run steps of it; all processes call it.

    Returns:
        The seconds that were predicted, those of each step, and what the plan is.
    """
    parallel = setting.parallel(cluster)
    model = setting.model
    rng = np.random.default_rng(0)
    batch = {
        name: rng.integers(0, 100, spec.shape).astype(spec.dtype)
        for name, spec in model.batch.items()
    }
    state = parallel.init(model.create, jax.random.key(0), batch)
    seconds: list[float] = []
    for number in range(_WARM_STEPS + num_steps):
        start_s = time.perf_counter()
        state, loss = parallel(state, batch)
        jax.block_until_ready((state, loss))
        if number >= _WARM_STEPS:
            seconds.append(time.perf_counter() - start_s)
    plan = parallel.plans[-1]
    return {
        "predicted_s": plan.step_time_s,
        "seconds": seconds,
        "meshes": [list(stage.mesh.sizes) for stage in plan.stages],
    }


def main() -> None:
    """Run all settings that the command line has."""
    cluster_file, settings, steps = sys.argv[1:]
    jax.distributed.initialize()
    cluster = ClusterSpec.from_file(cluster_file)
    for number, fields in enumerate(json.loads(settings)):
        found = run(Setting(**fields), cluster, int(steps))
        if not jax.process_index():
            print(MEASURED + json.dumps({"number": number, **found}), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
