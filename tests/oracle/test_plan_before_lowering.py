"""A plan, its collectives and its memory are computed before any lowering (invariant I2)."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src"

PROGRAM = """
    import sys

    sys.path.insert(0, sys.argv[1])
    sys.modules["meshwise.spmd"] = None  # Importing it, or anything inside, raises.

    import jax
    import jax.numpy as jnp

    jax.config.update("jax_platforms", "cpu")
    import meshwise as mw

    @mw.parallelize(method=mw.DataParallel(), cluster=mw.Cluster.virtual("1x p3.16xlarge"))
    def step(w, x):
        loss, grad = mw.value_and_grad(lambda w: jnp.sum((x @ w) ** 2))(w)
        return w - 0.1 * grad, loss

    w = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    x = jax.ShapeDtypeStruct((128, 64), jnp.float32)
    plan = step.plan(w, x)
    assert ("all-reduce", 64 * 64 * 4) in [(c.kind, c.num_bytes) for c in plan.collectives]
    assert plan.peak_bytes > 64 * 64 * 4 and plan.device_flop == 2 * 2 * 128 * 64 * 64 / 8
    try:
        step.program_text(w, x)
    except ImportError:
        print("planned without a lowering")
"""


def test_plan_needs_no_lowering() -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), str(SOURCE)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.strip() == "planned without a lowering", done.stderr[-2000:]
