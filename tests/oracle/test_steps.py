"""Steps of every shape that users write, against one device (I1)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwise as mw
from doubles.few import few
from oracle.compare import assert_same_x64
from oracle.parallel import parallel_step, run_method, run_random
from oracle.problem import Problem, Trajectory, fresh, quick_options_of, reference, run
from oracle.step_problems import (
    PROBLEMS,
    WIDTH,
    aux_outputs,
    batch_dim_not_0,
    clipped_gradients,
    convolution,
    custom_derivatives,
    indexed_by_two_positions,
    integer_state_and_keys,
    rematerialised,
    scanned_time,
    state_with_odd_leaves,
    static_arguments,
    tied_embedding,
    weights,
)

pytestmark = pytest.mark.usefixtures("x64", "quick_compile")


@cache
def _options(make: Callable[[], Problem]) -> dict[str, Any]:
    return quick_options_of(make())


@cache
def _reference(make: Callable[[], Problem]) -> Trajectory:
    """The run on one device, once for all tests of a problem."""
    return reference(make(), _options(make))


@pytest.fixture
def quick_without_scatters(
    x64: None, make: Callable[[], Problem], request: pytest.FixtureRequest
) -> None:
    if _options(make):
        request.getfixturevalue("quick_steps")


def _check_random(make: Callable[[], Problem], shape: tuple[int, ...], b: int) -> None:
    problem = make()
    if make is static_arguments:  # bound by the API, not by the lowering
        problem = _without_statics(problem)
    got = run_random(problem, shape, PROBLEMS.index(make), b)
    assert_same_x64(_reference(make), got)


each_problem = pytest.mark.parametrize("make", PROBLEMS, ids=lambda f: f.__name__)

# Of random decisions, those that move tensors of every kind; the slow ones take all steps.
MOVED = (
    batch_dim_not_0,
    clipped_gradients,
    convolution,
    custom_derivatives,
    indexed_by_two_positions,
    integer_state_and_keys,
    rematerialised,
    scanned_time,
    state_with_odd_leaves,
    tied_embedding,
)


@pytest.mark.usefixtures("quick_without_scatters")
@each_problem
def test_step_means_the_same(make):
    problem = make()
    got = run_method(problem, mw.IntraOp((2, 4)), 2)
    assert_same_x64(_reference(make), got)


@pytest.mark.usefixtures("quick_without_scatters")
@pytest.mark.parametrize("make", few(PROBLEMS, MOVED), ids=lambda f: f.__name__)
def test_step_means_the_same_under_a_random_decision(make):
    _check_random(make, (2, 2, 2), 4)


@pytest.mark.slow
@each_problem
@pytest.mark.parametrize("b", [1, 2])
def test_step_means_the_same_in_more_ways(make, b):
    problem = make()
    want = _reference(make)
    for method in (mw.DataParallel(), mw.Zero3(), mw.IntraOp((8,)), mw.IntraOp((2, 2, 2))):
        assert_same_x64(want, run_method(problem, method, b))
    _check_random(make, (2, 4), b)


def _without_statics(problem: Problem) -> Problem:
    activation, _, power = problem.calls[0]
    return Problem(
        step=lambda state, batch: problem.step(state, activation, batch, power),
        state=problem.state,
        calls=tuple((batch,) for _, batch, _ in problem.calls),
    )


@pytest.mark.parametrize("donate", ["auto", (), (0,)])
def test_donation_deletes_only_what_it_may(donate):
    problem = aux_outputs()
    step = parallel_step(problem, mw.IntraOp((8,)), donate_argnums=donate)
    first, _ = step(fresh(problem.state), *problem.calls[0])
    before = jax.tree.leaves(first)
    second, _ = step(first, *problem.calls[1])
    donated = donate != ()
    assert all(leaf.is_deleted() == donated for leaf in before)
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(second))


def test_a_donated_batch_is_not_needed_any_more():
    problem = aux_outputs()
    with pytest.warns(UserWarning, match=r"donate_argnums names argument 1 \(batch\)"):
        got = run_method(problem, mw.IntraOp((8,)), donate_argnums=(0, 1))
    assert_same_x64(reference(problem), got)


def test_shapes_and_trees_are_planned_apart():
    """One step, called with two batch sizes and two static values in turn."""

    @partial(mw.parallelize, method=mw.IntraOp((2, 4)), static_argnums=2)
    def step(w, x, power):
        return w * 0.5, jnp.mean((x @ w) ** power)

    w = np.asarray(weights((WIDTH, WIDTH))["w0"])
    for rows, power in ((16, 1), (8, 1), (16, 2), (16, 1), (8, 2)):
        x = np.random.default_rng(rows).normal(size=(rows, WIDTH))
        _, value = step(jnp.asarray(w), x, power)
        np.testing.assert_allclose(value, np.mean((x @ w) ** power), rtol=1e-12)


def test_arguments_may_be_anywhere():
    """NumPy, one device, other shardings: the step places what does not lie as planned."""
    problem = aux_outputs()
    step = parallel_step(problem, mw.IntraOp((2, 4)))
    want = reference(problem)
    assert_same_x64(want, run(step, problem))
    mesh = jax.make_mesh((8,), ("other",))
    spec = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("other"))
    moved = Problem(
        step=problem.step,
        state=jax.tree.map(np.asarray, problem.state),
        calls=tuple(
            (jax.tree.map(lambda leaf: jax.device_put(leaf, spec), batch),)
            for (batch,) in problem.calls
        ),
    )
    assert_same_x64(want, run(step, moved))
