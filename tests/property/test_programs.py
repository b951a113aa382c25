"""Random programs out of every ruled primitive mean what one device makes of them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from meshwise.rules.elementwise import NEWER
from meshwise.rules.table import RULES
from meshwise.trace.flatten import flatten
from meshwise.trace.padding.scopes import nest, scopes_of
from oracle.compare import assert_same_x64
from oracle.parallel import run_random, traced
from oracle.problem import quick_options_of, reference
from property.programs import (
    BUILDERS,
    NUM_KINDS,
    ROWWISE,
    Drawn,
    problem_of,
    programs,
    run_operations,
)

pytestmark = pytest.mark.usefixtures("x64", "quick_compile")

# A run of 20 programs; 25 of them in the slow suite.
_CHUNK, _CHUNKS = 20, 25
_QUICK = 1


def _check(drawn: Drawn) -> None:
    problem = problem_of(drawn)
    got = run_random(problem, drawn.mesh, drawn.seed, drawn.num_microbatches)
    assert_same_x64(reference(problem), got)


def _check_many(number: int, count: int) -> None:
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )
    @seed(number)
    @given(programs())
    def check(drawn: Drawn) -> None:
        _check(drawn)

    check()


def test_random_programs_mean_the_same() -> None:
    _check_many(1000, _QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(_CHUNKS))
def test_more_random_programs_mean_the_same(number: int) -> None:
    _check_many(number, _CHUNK)


def _drawn(operations: Any, **more: Any) -> Drawn:
    how = {"rows": False, "num_microbatches": 1, "mesh": (8,), "seed": 0, **more}
    return Drawn(operations=tuple(operations), **how)


# What random programs found, made small.
_FOUND = {
    "XLA refuses mulhi on several devices": _drawn([("mulhi", 693)], mesh=(2, 4), seed=2),
    "XLA refuses the layout of a transform": _drawn([("fft", 50309)], mesh=(2, 4), seed=2),
    "branches that gather what they pass on": _drawn([("platform", 4075), ("tile", 6282)], seed=2),
    "rows without elements on the way to a product": _drawn(
        [("cond", 625), ("scan_of_nothing", 1996), ("select", 159)], rows=True, num_microbatches=2
    ),
    "rows between the groups and channels of a kernel": _drawn(
        [("convolution", 300)], rows=True, num_microbatches=4, mesh=(2, 2, 2), seed=7147
    ),
}


@pytest.mark.parametrize("name", _FOUND)
def test_what_was_found_stays_fixed(name: str, request: pytest.FixtureRequest) -> None:
    # What XLA refused it is given as users give it.
    if "XLA" not in name and quick_options_of(problem_of(_FOUND[name])):
        request.getfixturevalue("quick_steps")
    _check(_FOUND[name])


def _kinds(name: str) -> range:
    """Seeds that stand for all kinds of a builder."""
    return range(-NUM_KINDS.get(name, 1), 0)


def _names(operations: Any) -> set[str]:
    """Primitives of a program and of its gradient, all values kept."""
    problem = problem_of(drawn := _drawn(operations))

    def everything(params: Any, batch: Any, key: jax.Array) -> Any:
        values = run_operations(drawn, params, batch, key)
        floats = [v.sum() for v in values if v.dtype == jnp.float64]
        return sum(floats, jnp.zeros(())), values

    operands = (problem.state["params"], *problem.calls[0], problem.state["key"])
    closed = jax.make_jaxpr(jax.grad(everything, has_aux=True))(*operands)
    scopes = scopes_of(nest(flatten(closed)))
    return {node.name for scope in scopes for node in scope.program.nodes}


# Attention is an operator only where a plan needs it (`oracle/test_attention`), experts where their
# products are found (`oracle/test_dispatch`); kernels and callbacks are tested in
# `oracle/test_kernels` and `runtime/test_callbacks`.
_ELSEWHERE = """
    attention attention_gradient dot_product_attention_bwd_wrapper
    dot_product_attention_fwd_wrapper experts experts_gradient host_call pallas_call pure_callback
""".split()


def test_every_ruled_primitive_is_drawn() -> None:
    operations = [(name, s) for name in sorted(BUILDERS) for s in _kinds(name)]
    reached: set[str] = set()
    for start in range(0, len(operations), 12):
        reached |= _names(operations[start : start + 12])
    assert set(RULES) - {*NEWER, *_ELSEWHERE} <= reached


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(ROWWISE))
def test_every_operation_on_rows_separates(name: str) -> None:
    """No program of rows is refused, so none of the random ones is left out."""
    for s in _kinds(name):
        traced(problem_of(_drawn([(name, s)], rows=True)), 2)
