"""Seconds and memory from a cold start to the plans of large models, each in a process of its own.

Everything counts that a user waits for: imports, tracing, the search, the simulation.  Compiled
kernels are there already (`make setup`).  Wall time depends on what else the machine does; user
CPU time, of the processes that help included, depends on it less.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from evaluation.steps import HALF, optimizer_of

import meshwise as mw
from meshwise.models.named import model_config
from meshwise.models.steps import model_step

_TIMEOUT_S = 600.0
_V100 = ("--cluster", "8x p3.16xlarge")
_PLAN = ("-m", "meshwise", "plan")

# Arguments of Python, and the goal in seconds of wall time on 2 cores.
CASES: dict[str, tuple[tuple[str, ...], float]] = {
    "gpt-39b on 64 V100": ((*_PLAN, "--model", "gpt-39b", *_V100), 30.0),
    "moe-70b on 64 V100": (
        (*_PLAN, "--step", "benchmarks.planning_time:moe_70b", *_V100),
        60.0,
    ),
    "wide-resnet-13b on 64 V100": (
        (*_PLAN, "--model", "wide-resnet-13b", *_V100, "--dtype", "float32", "--batch", "1520",
         "--microbatch-statistics", "local"),
        60.0,
    ),
    "llama-8b on one mesh of 64 H100": (("-m", "benchmarks.planning_time"), 10.0),
    "gpt-175b on 1024 H100": (
        (*_PLAN, "--model", "gpt-175b", "--cluster", "128x dgx-h100", "--dtype", "bfloat16",
         "--batch", "1536"),
        60.0,
    ),
}  # fmt: skip
QUICK = {
    "gpt-tiny on 4 V100": (
        (*_PLAN, "--model", "gpt-tiny", "--cluster", "1x p3.8xlarge", "--batch", "16",
         "--microbatches", "4"),
        60.0,
    ),
}  # fmt: skip


def moe_70b() -> tuple[Any, Any, Any]:
    """The paper's MoE-70B: float16 with a float32 copy in the optimizer's state, batch 1024."""
    config = model_config("moe-70b", **HALF)
    return model_step(config, 1024, optimizer_of(config)).abstract


def planning_time(quick: bool) -> dict[str, Any]:
    """Seconds and memory from a cold start to the plans of large models.

    Goals: 30 s for GPT-39B, 60 s for MoE-70B, Wide-ResNet-13B and (in 4 GB) GPT-175B on 1,024
    devices, 10 s for Llama-8B on one mesh.
    """
    cases = QUICK if quick else CASES
    return {name: _timed(arguments) | {"goal_s": goal} for name, (arguments, goal) in cases.items()}


def _timed(arguments: tuple[str, ...]) -> dict[str, Any]:
    """Run one case; time of the processes that it starts counts, memory is that of the largest."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "plan.json"
        start = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, *arguments, "--out", str(out)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Modules are compiled once, as where Python is not told otherwise.
            env=os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONDONTWRITEBYTECODE": ""},
        )
        timer = threading.Timer(_TIMEOUT_S, process.kill)
        timer.start()
        try:
            _, status, used = os.wait4(process.pid, 0)
        finally:
            timer.cancel()
        wall_s = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            return {"failed": process.returncode, "wall_s": wall_s}
        plan = json.loads(out.read_text(encoding="utf-8"))
    return {
        "wall_s": wall_s,
        "user_s": used.ru_utime,
        "peak_rss_bytes": used.ru_maxrss * 1024,
        "step_time_s": plan["step_time_s"],
        "formula_s": plan["formula_s"],
        "num_stages": len(plan["stages"]),
    }


def _plan_llama(out: Path) -> None:
    """Write the plan of Llama-8B on an 8 x 8 mesh of 64 H100, 64 sequences of 2048 tokens."""
    config = model_config("llama-8b", dtype="bfloat16", seq_len=2048)
    step, state, batch = model_step(config, 64).abstract
    parallel = mw.parallelize(
        step, method=mw.IntraOp(mesh_shape=(8, 8)), cluster=mw.Cluster.virtual("8x dgx-h100")
    )
    out.write_text(parallel.plan(state, batch).to_json(), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=_plan_llama.__doc__)
    parser.add_argument("--out", type=Path, required=True, help="file for the plan")
    _plan_llama(parser.parse_args().out)
