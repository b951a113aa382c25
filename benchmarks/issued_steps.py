"""One process that counts the seconds in which its Python thread works to issue a step.

`python -m benchmarks.issued_steps DEVICES STEPS [alone]`, in a job of `meshwise launch` or alone.
The last line that it prints is JSON.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

import jax

from benchmarks.small_pipeline import small_pipeline

NUM_LAYERS, ROWS, NUM_MICROBATCHES = 8, 16, 8
_WARM_UP = 20


def issue_seconds(num_steps: int) -> dict[str, Any]:
    """Run steps; return the median seconds of this thread, without those in which it waits."""
    step, state, batch = small_pipeline(
        num_layers=NUM_LAYERS, rows=ROWS, num_microbatches=NUM_MICROBATCHES
    )
    spent: list[float] = []
    for _ in range(_WARM_UP + num_steps):
        start = time.thread_time()
        state, loss = step(state, batch)
        spent.append(time.thread_time() - start)
        jax.block_until_ready((state, loss))
    executable: Any = step._last
    return {
        "process": jax.process_index(),
        "num_processes": jax.process_count(),
        "issue_s": statistics.median(spent[_WARM_UP:]),
        "num_instructions": len(executable.pipeline.program.order),
        "layers_of_stages": [s.last_layer - s.first_layer + 1 for s in step.plans[0].stages],
        "devices_of_stages": [s.num_devices for s in step.plans[0].stages],
    }


def main(devices: str, steps: str, alone: str = "") -> None:
    """Join the job, if there is one, and print what was counted."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", int(devices))
    if not alone:
        jax.distributed.initialize()
    print(json.dumps(issue_seconds(int(steps))), flush=True)
    if not alone:
        jax.distributed.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
