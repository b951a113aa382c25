"""State in the memory of the host changes no bit of a step, and stays there between steps."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import optax
import pytest

import meshwise as mw
from doubles.adam_step import ADAM, CLIPPED, LAMB, adam_step, guarded_adam_step, scanned_adam_step
from meshwise.errors import PlanError
from meshwise.plan.plan import Plan
from oracle.parallel import CLUSTER

pytestmark = pytest.mark.usefixtures("quick_compile")

WIDTHS = (16, 32, 16, 8)
HOST, DEVICE = "pinned_host", "device"


def weights(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=shape).astype(np.float32) / 4 for shape in shapes]


def layers(optimizer: optax.GradientTransformation) -> tuple[Callable[..., Any], Any]:
    found = weights(*itertools.pairwise(WIDTHS))
    return adam_step(optimizer), (found, jax.tree.map(np.asarray, optimizer.init(found)))


def stack() -> tuple[Callable[..., Any], Any]:
    (found,) = weights((3, 16, 16))
    return scanned_adam_step(), (found, jax.tree.map(np.asarray, ADAM.init(found)))


PROBLEMS: dict[str, Callable[[], tuple[Callable[..., Any], Any]]] = {
    "adam": lambda: layers(ADAM),
    "global norm": lambda: layers(CLIPPED),
    "norms of the update": lambda: layers(LAMB),
    "kept where nothing is finite": lambda: (guarded_adam_step(), layers(ADAM)[1]),
    "stack": stack,
}


def ran(step: Any, state: Any, num_out: int) -> tuple[Any, list[Any]]:
    """The state after three steps, with what each returned beside it."""
    rng = np.random.default_rng(1)
    outs: list[Any] = []
    for _ in range(3):
        x = rng.normal(size=(32, 16)).astype(np.float32)
        before, (state, out) = state, step(state, {"x": x, "y": x[:, :num_out]})
        outs.append(out)
        if len(outs) > 1:
            assert all(leaf.is_deleted() for leaf in jax.tree.leaves(before) if leaf.ndim)
    return state, outs


def assert_equal_but_for_rounding(found: Any, expected: Any) -> None:
    """Both programs compute the same, but a CPU may fuse products and sums of one of them only."""
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-6, atol=1e-9)


def in_host(plan: Plan, positions: tuple[int, ...]) -> Plan:
    """The same plan, some of whose state lies in the memory of the host."""
    decision = replace(plan.decision, in_host=positions)
    return Plan.from_json(replace(plan, decisions=(decision,)).to_json())


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("num_microbatches", [1, 4])
def test_a_step_with_state_in_the_host_gives_the_same_numbers(
    name: str, num_microbatches: int
) -> None:
    step, state = PROBLEMS[name]()
    num_out = 16 if name == "stack" else WIDTHS[-1]
    more: dict[str, Any] = {"cluster": CLUSTER, "num_microbatches": num_microbatches}
    free = mw.parallelize(step, method=mw.Auto(offload=False), **more)
    expected = ran(free, state, num_out)
    asked = mw.parallelize(step, method=mw.Auto(offload=True), **more)
    kinds = [leaf.sharding.memory_kind for leaf in jax.tree.leaves(ran(asked, state, num_out)[0])]
    plan = asked.plans[-1]
    # All moments and nothing else.
    assert [kind == HOST for kind in kinds] == [
        leaf.ndim > 0 and k >= len(jax.tree.leaves(state[0]))
        for k, leaf in enumerate(jax.tree.leaves(state))
    ]
    assert set(kinds) == {HOST, DEVICE}
    positions = plan.decision.in_host
    assert [a.in_host for a in plan.stages[0].arguments] == [
        i in positions for i in range(len(plan.decision.inputs))
    ]
    for some in (positions, positions[1:]):
        same = in_host(free.plans[-1], some)
        found = ran(mw.parallelize(step, method=mw.Replay(same), cluster=CLUSTER), state, num_out)
        assert_equal_but_for_rounding(found, expected)


def test_state_is_born_in_the_host() -> None:
    step, state = PROBLEMS["adam"]()
    parallel = mw.parallelize(step, method=mw.Auto(offload=True), cluster=CLUSTER)
    spec = jax.ShapeDtypeStruct((32, 16), np.float32)
    batch = {"x": spec, "y": jax.ShapeDtypeStruct((32, 8), np.float32)}
    made = parallel.init(lambda: jax.tree.map(jax.numpy.asarray, state), batch)
    wanted = parallel.plan(state, batch).decision.in_host
    kinds = [leaf.sharding.memory_kind for leaf in jax.tree.leaves(made)]
    assert [i for i, kind in enumerate(kinds) if kind == HOST] == list(wanted)


STAGED = {"adam": ADAM, "global norm": CLIPPED, "norms of the update": LAMB}


# The others do the same, and each does it on one mesh.
@pytest.mark.parametrize(
    "name",
    [n if n == "global norm" else pytest.param(n, marks=pytest.mark.slow) for n in STAGED],
)
def test_a_pipeline_with_state_in_the_host_gives_the_same_numbers(name: str) -> None:
    step, state = layers(STAGED[name])
    found: list[Any] = []
    for offload in (False, True):
        method = mw.Auto(stages=2, offload=offload, schedule="1f1b")
        parallel = mw.parallelize(step, method=method, cluster=CLUSTER, num_microbatches=2)
        found.append(ran(parallel, state, WIDTHS[-1]))
        (plan,) = parallel.plans
        told = [a.in_host for stage in plan.stages for a in stage.arguments]
        assert any(told) == offload
        assert ("in host memory" in plan.explain()) == offload
        assert Plan.from_json(plan.to_json()) == plan
    assert_equal_but_for_rounding(*found)
    kinds = [leaf.sharding.memory_kind for leaf in jax.tree.leaves(found[1][0])]
    # Two moments of each matrix.
    assert kinds.count(HOST) == 2 * (len(WIDTHS) - 1)
    again = mw.parallelize(step, method=mw.Replay(plan), cluster=CLUSTER)
    for a, b in zip(*map(jax.tree.leaves, (ran(again, state, WIDTHS[-1]), found[1])), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def test_stacks_of_a_pipeline_stay_on_the_devices() -> None:
    step, state = stack()
    spec = jax.ShapeDtypeStruct((32, 16), np.float32)
    method = mw.Auto(stages=2, offload=True, schedule="1f1b")
    parallel = mw.parallelize(step, method=method, cluster=CLUSTER, num_microbatches=2)
    with pytest.raises(PlanError, match="is a stack of layers, which stays on the devices"):
        parallel.plan(state, {"x": spec, "y": spec})


def test_state_that_others_read_stays_on_the_devices_of_a_pipeline() -> None:
    """The guard reads all moments, where no layer has more than its own."""
    step, state = PROBLEMS["kept where nothing is finite"]()
    method = mw.Auto(stages=2, offload=True, schedule="1f1b")
    planned = mw.parallelize(step, method=method, cluster=CLUSTER, num_microbatches=2)
    batch = {"x": np.ones((32, 16), np.float32), "y": np.ones((32, 8), np.float32)}
    with pytest.raises(PlanError, match="read not only by the update of its own layer"):
        planned.plan(state, batch)


def test_shardings_of_a_plan_say_what_lies_in_host_memory() -> None:
    step, state = layers(ADAM)
    planned = mw.parallelize(step, method=mw.Auto(offload=True), cluster=CLUSTER)
    batch = {"x": np.ones((32, 16), np.float32), "y": np.ones((32, 8), np.float32)}
    plan = planned.plan(state, batch)
    placed, _ = mw.shardings(plan, state, batch)
    kinds = [leaf.memory_kind for leaf in jax.tree.leaves(placed)]
    assert kinds == [HOST if a.in_host else DEVICE for a in plan.stages[0].arguments[: len(kinds)]]
    assert HOST in kinds
