"""Models of every family under every method and B, against one device (I1)."""

from __future__ import annotations

import itertools
from functools import cache

import pytest

import meshwise as mw
from meshwise.errors import TraceError
from meshwise.request.methods import Method
from oracle.compare import assert_same_x64
from oracle.model_problems import INSEPARABLE, MODELS, model_problem
from oracle.parallel import parallel_step, run_method
from oracle.problem import QUICK_OPTIONS, Trajectory, reference

pytestmark = pytest.mark.usefixtures("x64", "quick_steps")

METHODS: tuple[Method, ...] = (
    mw.IntraOp((2, 4)),
    mw.DataParallel(),
    mw.Zero2(),
    mw.Zero3(),
    mw.Megatron(2, 4),
    mw.Heuristic((2, 4)),
)
NUM_MICROBATCHES = (1, 2, 4)
# A layer of experts alone is for the default run.
WHOLE = [name for name in MODELS if name != "experts-of-1"]
ALL = list(itertools.product(WHOLE, METHODS, NUM_MICROBATCHES))
EXACT = [row for row in ALL if row[0] not in INSEPARABLE or row[2] == 1]


def _name(row: tuple[str, Method, int]) -> str:
    return f"{row[0]}-{type(row[1]).__name__}-B{row[2]}"


LOCAL = [row for row in ALL if row[0] in INSEPARABLE and row[2] > 1]
# Each model and each B once, as GPTs run under every method; the U-Transformer takes a minute and
# is left to `-m slow`.
QUICK = [
    ("llama-scan-remat", METHODS[0], 2),
    ("bert-scan", METHODS[5], 1),
    ("moe", METHODS[0], 4),
    ("experts-of-1", METHODS[0], 2),
]


@cache
def _reference(name: str, one_by_one: int = 1) -> Trajectory:
    return reference(model_problem(name, one_by_one), QUICK_OPTIONS)


def _check(row: tuple[str, Method, int]) -> None:
    name, method, b = row
    assert_same_x64(_reference(name), run_method(model_problem(name), method, b))


def _check_local(row: tuple[str, Method, int]) -> None:
    name, method, b = row
    got = run_method(model_problem(name), method, b, microbatch_statistics="local")
    assert_same_x64(_reference(name, b), got)


@pytest.mark.parametrize("row", QUICK, ids=_name)
def test_model_means_the_same(row):
    _check(row)


@pytest.mark.slow
@pytest.mark.parametrize("row", EXACT, ids=_name)
def test_model_means_the_same_on_every_combination(row):
    _check(row)


@pytest.mark.slow
def test_local_statistics_are_those_of_each_micro_batch():
    _check_local(("wide-resnet", mw.DataParallel(), 2))


@pytest.mark.slow
@pytest.mark.parametrize("row", LOCAL, ids=_name)
def test_local_statistics_on_every_combination(row):
    _check_local(row)


@pytest.mark.parametrize("name", INSEPARABLE)
def test_what_does_not_separate_is_refused(name):
    problem = model_problem(name)
    step = parallel_step(problem, mw.DataParallel(), num_microbatches=2)
    with pytest.raises(TraceError, match='does not separate.*microbatch_statistics="local"'):
        step.plan(problem.state, *problem.calls[0])
