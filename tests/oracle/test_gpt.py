"""GPT in both forms, with every optimizer, loss, method and B, against one device (I1)."""

from __future__ import annotations

import itertools
from functools import cache
from typing import NamedTuple

import pytest

import meshwise as mw
from meshwise.methods import Method
from oracle.compare import assert_same_bf16, assert_same_fp32, assert_same_x64
from oracle.covering import pairwise
from oracle.gpt_problems import Case, gpt_problem
from oracle.parallel import run_method, run_random
from oracle.problem import Trajectory, noise_leaves, reference
from oracle.tolerances import NEGLIGIBLE_GRADIENT

MESHES = ((8,), (2, 4), (2, 2, 2))


class Random(NamedTuple):
    """A decision that nothing has optimised."""

    mesh_shape: tuple[int, ...]


# A plan that is not proven best is as good here: the solver may stop early.
METHODS: tuple[Method | Random, ...] = (
    mw.DataParallel(),
    mw.Zero2(),
    mw.Zero3(),
    mw.Megatron(2, 4),
    mw.Heuristic((2, 4)),
    *(mw.IntraOp(shape, time_limit_s=5.0) for shape in MESHES),
    *(Random(shape) for shape in MESHES),
)
FORMS, OPTIMIZERS, SWITCH = ("unrolled", "scan"), ("adam", "adafactor", "sgd"), (False, True)
LOSSES, NUM_MICROBATCHES = ("mean", "masked"), (1, 2, 4)

PROBLEMS = list(itertools.product(FORMS, OPTIMIZERS, SWITCH, LOSSES, SWITCH))
ALL = [
    (*problem, method, b) for problem in PROBLEMS for method in METHODS for b in NUM_MICROBATCHES
]


def _is_quick(row: tuple[object, ...]) -> bool:
    """Unrolled, a random decision (it moves nearly every tensor) compiles for half a minute, and
    planning on three axes takes as long.
    """
    method = row[5]
    on_three_axes = isinstance(method, mw.IntraOp) and method.mesh_shape == (2, 2, 2)
    return row[0] == "scan" or not (isinstance(method, Random) or on_three_axes)


# Few problems, so that few references are compiled.
FEW = pairwise(PROBLEMS)
QUICK = [row for row in ALL if row[:5] in FEW and _is_quick(row)]
COVERING = pairwise(QUICK)


def _name(row: tuple[object, ...]) -> str:
    form, optimizer, dropout, loss, remat, method, b = row
    words = [form, optimizer, "dropout" if dropout else "", loss, "remat" if remat else ""]
    mesh = getattr(method, "mesh_shape", None)
    shape = "x".join(map(str, mesh)) if mesh else ""
    words += [type(method).__name__ + shape, f"B{b}"]
    return "-".join(filter(None, words))


def _case(row: tuple[object, ...], dtype: str) -> Case:
    form, optimizer, dropout, loss, remat, *_ = row
    return Case(form, optimizer, dropout, loss, remat, dtype, dtype)  # type: ignore[arg-type]


@cache
def _reference(case: Case) -> Trajectory:
    return reference(gpt_problem(case))


@cache
def _noise(case: Case) -> frozenset[str]:
    return noise_leaves(gpt_problem(case), NEGLIGIBLE_GRADIENT)


def _run(case: Case, method: Method | Random, b: int, seed: int = 0) -> Trajectory:
    if isinstance(method, Random):
        return run_random(gpt_problem(case), method.mesh_shape, seed, b)
    return run_method(gpt_problem(case), method, b)


def _check_x64(row: tuple[object, ...]) -> None:
    case, (method, b) = _case(row, "float64"), row[5:]
    # Adafactor divides by the size of the gradient, with no eps to speak of.
    noise = _noise(case) if case.optimizer == "adafactor" else frozenset()
    got = _run(case, method, b, seed=ALL.index(row))  # type: ignore[arg-type]
    assert_same_x64(_reference(case), got, noise)


@pytest.mark.usefixtures("x64", "quick_compile")
@pytest.mark.parametrize("row", COVERING, ids=_name)
def test_gpt_means_the_same_on_any_plan(row):
    _check_x64(row)


@pytest.mark.slow
@pytest.mark.usefixtures("x64", "quick_compile")
@pytest.mark.parametrize("row", ALL, ids=_name)
def test_gpt_means_the_same_on_every_combination(row):
    _check_x64(row)


@pytest.mark.usefixtures("x64", "quick_compile")
@pytest.mark.parametrize("b", [1, 2])
def test_plain_value_and_grad_gives_the_same(b):
    case = Case("unrolled", "adam", True, "mean", False, "float64", "float64")
    plain = case._replace(plain=True)
    assert_same_x64(_reference(case), _run(plain, mw.IntraOp((2, 4)), b))


def _check_fp32(row: tuple[object, ...]) -> None:
    case, (method, b) = _case(row, "float32"), row[5:]
    assert_same_fp32(_reference(case), _run(case, method, b), _noise(case))


def test_gpt_in_float32_compiled_as_users_compile_it():
    _check_fp32(("scan", "sgd", False, "masked", False, mw.IntraOp((2, 4)), 2))


@pytest.mark.usefixtures("quick_compile")
@pytest.mark.parametrize(
    "row",
    [
        ("scan", "adam", True, "masked", False, mw.Zero3(), 4),
        ("unrolled", "adam", False, "mean", True, mw.Megatron(2, 4), 1),
    ],
    ids=_name,
)
def test_gpt_in_float32(row):
    _check_fp32(row)


@pytest.mark.usefixtures("quick_compile")
@pytest.mark.parametrize(("method", "b"), [(mw.DataParallel(), 2), (mw.IntraOp((2, 4)), 1)])
def test_gpt_with_bfloat16_compute_and_float32_parameters(method, b):
    case = Case("scan", "sgd", True, "mean", True, "bfloat16", "float32")
    assert_same_bf16(_reference(case), _run(case, method, b))


def test_the_covering_rows_cover_every_pair():
    covered = {p for row in COVERING for p in itertools.combinations(enumerate(map(str, row)), 2)}
    wanted = {p for row in QUICK for p in itertools.combinations(enumerate(map(str, row)), 2)}
    assert covered == wanted
    assert len({row[:5] for row in COVERING}) <= 8


def test_covering_knows_what_is_covered():
    rows = list(itertools.product("ab", "cd"))
    assert pairwise(rows, known=rows) == []
    assert len(pairwise(rows)) == 4
