"""Random programs under random decisions and any B mean what one device makes of them."""

from __future__ import annotations

import pytest

import meshwise as mw
from oracle.compare import assert_same_x64
from oracle.parallel import run_method, run_random
from oracle.problem import quick_options_of, reference
from property.random_programs import random_problem

pytestmark = pytest.mark.usefixtures("x64", "quick_compile")

MESHES = ((8,), (2, 4), (2, 2, 2))
NUM_MICROBATCHES = (1, 2, 4)
# Each mesh and each number of micro-batches once, all under a planned decision too.
QUICK = (12, 16, 20)


@pytest.fixture(autouse=True)
def quick_without_scatters(x64: None, seed: int, request: pytest.FixtureRequest) -> None:
    if quick_options_of(random_problem(seed)):
        request.getfixturevalue("quick_steps")


def _check(seed: int) -> None:
    problem = random_problem(seed)
    want = reference(problem)
    b = NUM_MICROBATCHES[seed // 3 % 3]
    assert_same_x64(want, run_random(problem, MESHES[seed % 3], seed, b))
    if seed % 4 == 0:
        assert_same_x64(want, run_method(problem, mw.IntraOp(MESHES[seed // 4 % 3]), b))


@pytest.mark.parametrize("seed", QUICK)
def test_a_random_program_means_the_same(seed):
    _check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [seed for seed in range(200) if seed not in QUICK])
def test_more_random_programs_mean_the_same(seed):
    _check(seed)
