"""Problems that are none get an error that names the place; odd ones that are get an answer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from assignment.problems import proved
from meshwise.assignment.encoding import encode
from meshwise.assignment.instance_solver import solve_instance
from meshwise.assignment.problem import Array, PairCost, Problem, Row
from meshwise.assignment.solve import solve
from meshwise.errors import SolverError

TWO = (np.array([1.0, 0.0]), np.array([0.0, 2.0]))
NO_CHOICE = (np.zeros(0), np.array([1.0]))


def _costs(*values: float) -> Problem:
    return Problem(costs=(np.array(values),), pairs=())


def _pair(cost: Array, u: int = 0, v: int = 1) -> Problem:
    return Problem(costs=TWO, pairs=(PairCost(u=u, v=v, cost=cost),))


def _row(
    *weights: float, node: int = 0, limit: float = 3.0, pair: Array | None = None, name: str = ""
) -> Problem:
    pairs = () if pair is None else ((0, 1, pair),)
    row = Row(nodes=((node, np.array(weights)),), pairs=pairs, limit=limit, name=name)
    return Problem(costs=TWO, pairs=(), rows=(row,))


def _hole(value: float) -> Array:
    return np.array([[0.0, 1.0], [value, 2.0]])


@pytest.mark.parametrize("call", [encode, solve])
@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (_costs(1, np.nan), "the costs of node 0: nan for choice 1; it must be infinity or a num"),
        (_costs(-np.inf, 1), "the costs of node 0: -inf for choice 0"),
        (_costs(-1e308, 1e308), r"the costs of node 0: -1e\+308 for choice 0"),
        (_pair(_hole(np.nan)), "the costs of nodes 0 and 1: nan for choice 1, 0"),
        (_pair(np.zeros((3, 2))), r"nodes 0 and 1 have the shape \(3, 2\), and choices \(2, 2\)"),
        (_pair(_hole(0.0), 0, 7), "the costs of nodes 0 and 7: there is no node 7, but 2 from 0"),
        (_pair(_hole(0.0), 1, 0), "nodes 1 and 0: the first node of a pair must come before"),
        (_row(0, 5, limit=np.nan), "the limit of row 0 is nan"),
        (_row(0, np.nan, name="t3"), r"weights of node 0 in row 0 \(t3\): nan for choice 1"),
        (_row(0, np.inf), "weights of node 0 in row 0: inf for choice 1; it must be a number bet"),
        (_row(-1e308, 1e308), r"weights of node 0 in row 0: -1e\+308 for choice 0"),
        (_row(0, 5, pair=_hole(np.inf)), "nodes 0 and 1 in row 0: inf for choice 1, 0"),
        (_row(0, 5, 6), r"weights of node 0 in row 0 have the shape \(3,\), and choices \(2,\)"),
        (_row(0, 5, node=5), "the weights of node 5 in row 0: there is no node 5"),
    ],
)
def test_what_is_wrong_is_named(
    call: Callable[[Problem], object], problem: Problem, message: str
) -> None:
    with pytest.raises(SolverError, match=message):
        call(problem)


def _without_choices(*, node: bool, pair: bool) -> Problem:
    row = Row(
        nodes=((0, np.zeros(0)),) if node else (),
        pairs=((0, 1, np.zeros((0, 1))),) if pair else (),
        limit=3.0,
    )
    return Problem(costs=NO_CHOICE, pairs=(), rows=(row,))


@pytest.mark.parametrize(
    "problem",
    [
        _row(0, 5, limit=-np.inf),
        _row(0, 5, limit=-1.0),
        _costs(np.inf, np.inf),
        Problem(costs=NO_CHOICE, pairs=()),
        _without_choices(node=True, pair=False),
        _without_choices(node=False, pair=True),
        Problem(costs=(), pairs=(), rows=(Row(nodes=(), limit=-1.0),)),
        Problem(costs=TWO, pairs=(), rows=(Row(nodes=(), limit=-1.0),)),
    ],
)
@pytest.mark.usefixtures("compiled_kernels")
def test_what_cannot_be_met_is_infeasible(problem: Problem) -> None:
    assert proved(problem).status == "infeasible"
    assert solve_instance(encode(problem).instance, time_limit_s=300).status == "infeasible"


@pytest.mark.parametrize(
    ("problem", "choice"),
    [
        (_row(0, 5, limit=np.inf), (1, 0)),
        (_row(0, 5, limit=1e300), (1, 0)),
        (_row(0, 5, limit=1e300, pair=_hole(3.0)), (1, 0)),
        (_row(5e-324, 0, limit=0.0), (1, 0)),
        (_row(1e289, 0, limit=1e200), (1, 0)),
        (_costs(5e-324, 0), (1,)),
        (_costs(1e289, -1e289), (1,)),
        (Problem(costs=(), pairs=(), rows=(Row(nodes=(), limit=0.0),)), ()),
    ],
)
@pytest.mark.usefixtures("compiled_kernels")
def test_odd_problems_are_solved(problem: Problem, choice: tuple[int, ...]) -> None:
    found = proved(problem)
    assert (found.choice, found.status) == (choice, "optimal")
    answer = solve_instance(encode(problem).instance, time_limit_s=300)
    assert answer.status == "optimal"


def test_the_least_fraction_does_not_fit_into_nothing() -> None:
    """Fractions of bytes prove nothing (`encode.Encoded.is_exact`), but the choice is right."""
    found = proved(_row(0, 5e-324, limit=0.0))
    assert (found.choice, found.cost) == ((0, 0), 1.0)
