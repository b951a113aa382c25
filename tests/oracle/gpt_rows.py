"""Rows of the comparison of GPTs with one device: a problem, a method or a random decision, B."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

import meshwise as mw
from meshwise.request.methods import Method
from oracle.compare import assert_same_x64
from oracle.covering import pairwise
from oracle.gpt_problems import Case, gpt_problem
from oracle.parallel import run_method, run_random
from oracle.problem import QUICK_OPTIONS, Trajectory, noise_leaves, reference
from oracle.tolerances import NEGLIGIBLE_GRADIENT

MESHES = ((8,), (2, 4), (2, 2, 2))


class Random(NamedTuple):
    """A decision that nothing has optimised."""

    mesh_shape: tuple[int, ...]


Row = tuple[str, str, bool, str, bool, Method | Random, int]

CHEAP: tuple[Method, ...] = (
    mw.DataParallel(),
    mw.Zero2(),
    mw.Zero3(),
    mw.Megatron(2, 4),
    mw.Heuristic((2, 4)),
    mw.IntraOp((8,)),
    mw.IntraOp((2, 4)),
)
ON_THREE_AXES = mw.IntraOp((2, 2, 2))
METHODS = (*CHEAP, ON_THREE_AXES, *(Random(shape) for shape in MESHES))
FORMS, OPTIMIZERS, SWITCH = ("unrolled", "scan"), ("adam", "adafactor", "sgd"), (False, True)
LOSSES, NUM_MICROBATCHES = ("mean", "masked"), (1, 2, 4)

PROBLEMS = list(itertools.product(FORMS, OPTIMIZERS, SWITCH, LOSSES, SWITCH))
ALL: list[Row] = [
    (*problem, method, b) for problem in PROBLEMS for method in METHODS for b in NUM_MICROBATCHES
]

# Few problems, so that few references are compiled.
FEW = pairwise(PROBLEMS)
QUICK = [row for row in ALL if row[:5] in FEW and row[5] in CHEAP]
# A random decision moves nearly every tensor, which takes long to compile, and planning on three
# axes takes as long: these come once each, and scanned.
DEAR: list[Row] = [
    ("scan", "sgd", False, "mean", True, ON_THREE_AXES, 2),
    ("scan", "sgd", False, "mean", True, Random((2, 2, 2)), 4),
    ("scan", "adam", True, "masked", False, Random((2, 4)), 2),
    ("scan", "adafactor", False, "mean", False, Random((8,)), 1),
]
COVERING: list[Row] = [*pairwise(QUICK), *DEAR]
# All of them take half a day.
DRAWN: list[Row] = random.Random(0).sample(ALL, 100)


def first_of_each(rows: list[Row], known: Iterable[Row] = ()) -> list[Row]:
    """Few rows that have every problem, method and number of micro-batches; beside known ones."""

    def values(row: Row) -> set[object]:
        return {row[:5], row[5], row[6]}

    missing = set[object]().union(*map(values, rows)).difference(*map(values, known))
    found: list[Row] = []
    while missing:
        found.append(max(rows, key=lambda row: len(values(row) & missing)))
        missing -= values(found[-1])
    return found


# Scanned GPTs have two layers in every row, unrolled ones where the optimiser plans them once.
SCANNED, UNROLLED = ([row for row in COVERING if row[0] == form] for form in ("scan", "unrolled"))
TWO_LAYERS = next(row for row in UNROLLED if row[5] == mw.IntraOp((2, 4)))
# For the default run: these two, and every problem, method and number of micro-batches once.
_ALWAYS = [DEAR[-1], TWO_LAYERS]
DEFAULT = [*first_of_each([row for row in COVERING if row not in DEAR], _ALWAYS), *_ALWAYS]


def row_name(row: Row) -> str:
    """The values of a row that say something."""
    form, optimizer, dropout, loss, remat, method, b = row
    words = [form, optimizer, "dropout" if dropout else "", loss, "remat" if remat else ""]
    mesh = getattr(method, "mesh_shape", None)
    shape = "x".join(map(str, mesh)) if mesh else ""
    words += [type(method).__name__ + shape, f"B{b}"]
    return "-".join(filter(None, words))


def row_case(row: Row, dtype: str) -> Case:
    """The problem of a row, parameters and sums in one dtype."""
    form, optimizer, dropout, loss, remat, *_ = row
    return Case(form, optimizer, dropout, loss, remat, dtype, dtype)


@cache
def case_reference(case: Case) -> Trajectory:
    """The run on one device, once for all rows of a process."""
    return reference(gpt_problem(case), QUICK_OPTIONS)


@cache
def case_noise(case: Case) -> frozenset[str]:
    """Leaves whose gradient is rounding noise."""
    return noise_leaves(gpt_problem(case), NEGLIGIBLE_GRADIENT)


def run_case(case: Case, method: Method | Random, b: int, seed: int = 0) -> Trajectory:
    """Run a problem in parallel; `seed` draws a random decision."""
    if isinstance(method, Random):
        return run_random(gpt_problem(case), method.mesh_shape, seed, b)
    return run_method(gpt_problem(case), method, b)


def check_x64(row: Row, num_layers: int = 2) -> None:
    """Compare a row with one device in float64."""
    case = row_case(row, "float64")._replace(num_layers=num_layers)
    method, b = row[5], row[6]
    # Adafactor divides by the size of the gradient, with no eps to speak of.
    noise = case_noise(case) if case.optimizer == "adafactor" else frozenset[str]()
    got = run_case(case, method, b, seed=ALL.index(row))
    assert_same_x64(case_reference(case), got, noise)
