"""Every example means the same on 8 devices as on one (I1), and runs as a script."""

from __future__ import annotations

import importlib
import itertools
import subprocess
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import pytest

import meshwise as mw
import optimizers
from meshwise.errors import TraceError
from oracle.compare import assert_same_fp32, assert_same_x64
from oracle.parallel import run_method
from oracle.problem import Problem, Trajectory, reference
from oracle.tolerances import NUM_STEPS

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = (
    "plain_jax",
    "flax_linen",
    "flax_nnx",
    "equinox_mlp",
    "haiku_mlp",
    "gan",
    "lora",
    "batch_norm",
    "masked_lm",
)
NAMES = (*SCRIPTS, *(f"optimizers:{name}" for name in optimizers.OPTIMIZERS))
METHODS = {
    "IntraOp2x4": mw.IntraOp((2, 4)),
    "IntraOp8": mw.IntraOp((8,)),
    "DataParallel": mw.DataParallel(),
    "Zero2": mw.Zero2(),
    "Zero3": mw.Zero3(),
    "Megatron": mw.Megatron(dp=2, tp=4),
    "Heuristic": mw.Heuristic((2, 4)),
}
MICROBATCHES = (1, 2, 4)
# The rest of Optax's optimizers are in the slow product, or in the oracle tests of GPT.
QUICK = (*SCRIPTS, "optimizers:lion", "optimizers:muon", "optimizers:multi-steps")
# The statistics of a batch do not separate into those of micro-batches.
NOT_SEPARABLE = ("batch_norm",)
# Optax accumulates gradients in float32 whatever the parameters are.
FLOAT32 = ("optimizers:multi-steps",)

pytestmark = pytest.mark.usefixtures("quick_steps")


def problem_of(name: str) -> Problem:
    script, _, variant = name.partition(":")
    module = importlib.import_module(script)
    step, create = module.train_step, module.create_state
    if variant:
        step, create = partial(step, variant), partial(create, variant)
    state = jax.jit(create)(jax.random.key(0))
    return Problem(step=step, state=state, calls=tuple((b,) for b in module.batches(NUM_STEPS)))


_references: dict[str, tuple[Problem, Trajectory]] = {}


def known(name: str) -> tuple[Problem, Trajectory]:
    if name not in _references:
        problem = problem_of(name)
        _references[name] = problem, reference(problem)
    return _references[name]


def covering() -> Iterable[Any]:
    """Each example once, methods and micro-batches in turn."""
    ways = itertools.cycle(itertools.product(METHODS, MICROBATCHES))
    for name in NAMES:
        method, b = next(ways)
        for _ in range(3):  # A stride without a common factor with 21.
            next(ways)
        marks = () if name in QUICK else pytest.mark.slow
        yield pytest.param(name, method, 1 if name in NOT_SEPARABLE else b, marks=marks)


def check(name: str, method: str, b: int) -> None:
    x64 = name not in FLOAT32
    with jax.enable_x64(x64):
        problem, want = known(name)
        got = run_method(problem, METHODS[method], b)
        (assert_same_x64 if x64 else assert_same_fp32)(want, got)


@pytest.mark.parametrize(("name", "method", "b"), tuple(covering()))
def test_example_means_the_same(name, method, b):
    check(name, method, b)


@pytest.mark.slow
@pytest.mark.parametrize("b", MICROBATCHES)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", [n for n in NAMES if n not in NOT_SEPARABLE])
def test_example_means_the_same_in_every_way(name, method, b):
    check(name, method, b)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_batch_statistics_of_the_whole_batch(method):
    check("batch_norm", method, 1)


def test_batch_statistics_do_not_separate():
    with jax.enable_x64(True), pytest.raises(TraceError, match="microbatch_statistics"):
        run_method(known("batch_norm")[0], mw.IntraOp((8,)), 2)


def test_every_script_is_tested():
    scripts = {path.stem for path in EXAMPLES.glob("*.py")} - {"show"}
    assert scripts - {name.partition(":")[0] for name in NAMES} <= {"opaque_kernel"}


@pytest.mark.parametrize(
    "script",
    ["plain_jax", *(pytest.param(s, marks=pytest.mark.slow) for s in (*SCRIPTS[1:], "optimizers"))],
)
def test_example_runs_as_a_script(script):
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{script}.py"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Collectives in a step" in done.stdout
    assert "step  40" in done.stdout
