"""The comparison bites: a program that is broken in one place fails it.

Each mutation alters the decision's lowering or the step from outside; each test first sees the
same wrapper pass while it alters nothing.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import meshwise as mw
import meshwise.rules.table as rule_table
import meshwise.spmd.lower as lower
from doubles.random_decision import random_decision
from meshwise.cluster.mesh import LogicalMesh
from meshwise.plan.counts.walk import Reshard, transfers
from meshwise.plan.decision import GraphDecision
from meshwise.rules.primitive import PrimitiveRule, Shards
from meshwise.rules.random import bits_rule, local_bits
from meshwise.spmd.shards import SpaceShards
from meshwise.trace.step import TracedStep
from meshwise.trace.time import emit
from meshwise.trace.time.shards import TimeShards
from meshwise.trace.time.state import PARTIAL, WHOLE
from oracle.compare import assert_same_fp32, assert_same_x64, whole_from_shards
from oracle.parallel import CLUSTER, decided_step, parallel_step, run_method, traced
from oracle.problem import Problem, Trajectory, quick_jit, reference, run
from oracle.tolerances import NUM_STEPS

ROWS, WIDTH = 16, 8
quick = pytest.mark.usefixtures("x64", "quick_compile")


def _step(change: Callable[[Any], Any] = lambda grads: grads) -> Callable[..., Any]:
    def step(state, batch):
        key, now = jax.random.split(state["key"])

        def loss(p):
            h = jnp.tanh(batch["x"] @ p["w0"] + p["b0"])
            h = jnp.where(jax.random.bernoulli(now, 0.5, h.shape), h / 0.5, 0)
            each = -jax.nn.log_softmax(h @ p["w1"])[jnp.arange(ROWS), batch["y"]]
            decay = sum(jnp.sum(leaf**2) for leaf in p.values())
            return jnp.sum(each * batch["mask"]) / batch["mask"].sum() + 0.01 * decay

        value, grads = mw.value_and_grad(loss)(state["p"])
        new = jax.tree.map(lambda p, g: p - 0.1 * g, state["p"], change(grads))
        return {"key": key, "p": new}, value

    return step


@cache
def problem(dtype: str = "float64") -> Problem:
    rng = np.random.default_rng(0)
    shapes = {"w0": (WIDTH, WIDTH), "b0": (WIDTH,), "w1": (WIDTH, WIDTH)}
    params = {k: jnp.asarray(rng.normal(size=s), dtype) for k, s in shapes.items()}
    calls = tuple(
        (
            {
                "x": rng.normal(size=(ROWS, WIDTH)).astype(dtype),
                "y": rng.integers(0, WIDTH, ROWS, dtype=np.int32),
                "mask": rng.random(ROWS) < 0.6,
            },
        )
        for _ in range(NUM_STEPS)
    )
    return Problem(step=_step(), state={"key": jax.random.key(0), "p": params}, calls=calls)


@cache
def wanted(dtype: str = "float64") -> Trajectory:
    return reference(problem(dtype))


def first_decision(
    step: TracedStep, mesh: LogicalMesh, wanted_in: Callable[[GraphDecision], bool]
) -> GraphDecision:
    """The first random decision that has what a mutation needs."""
    drawn = (random_decision(step.graph, mesh, random.Random(seed)) for seed in range(500))
    return next(decision for decision in drawn if wanted_in(decision))


def assert_fails(got: Trajectory, want: Trajectory | None = None) -> None:
    with pytest.raises(AssertionError):
        assert_same_x64(want or wanted(), got)


# -- one leaf's gradient doubled ------------------------------------------------------------------


def _doubled(leaf: str) -> Problem:
    double = lambda grads: {**grads, leaf: 2 * grads[leaf]}  # noqa: E731
    return dataclasses.replace(problem(), step=_step(double))


@quick
@pytest.mark.parametrize("leaf", ["w0", "b0", "w1"])
def test_one_gradient_doubled(leaf):
    assert_fails(run(quick_jit(_doubled(leaf).step), _doubled(leaf)))
    assert_fails(run_method(_doubled(leaf), mw.DataParallel(), 2))


def test_one_gradient_doubled_in_float32():
    right = run_method(problem("float32"), mw.DataParallel(), 2)
    assert_same_fp32(wanted("float32"), right)
    slightly = lambda grads: {**grads, "b0": 1.002 * grads["b0"]}  # noqa: E731
    wrong = dataclasses.replace(problem("float32"), step=_step(slightly))
    with pytest.raises(AssertionError, match="b0"):
        assert_same_fp32(wanted("float32"), run_method(wrong, mw.DataParallel(), 2))


# -- one collective dropped or in another order ---------------------------------------------------


class Collectives:
    """Takes the place of `apply_step`: alters the `pick`-th step that it is asked to alter."""

    def __init__(self, eligible: Callable[[Any], bool], alter: Callable[..., Any]) -> None:
        self._eligible, self._alter = eligible, alter
        self.pick: int | None = None
        self.seen = 0

    def __call__(
        self, value: Any, before: Any, step: Any, sizes: Sequence[int], names: Sequence[str]
    ) -> Any:
        if self._eligible(step):
            self.seen += 1
            if self.seen - 1 == self.pick:
                return self._alter(value, before, step, sizes, names)
        return _APPLY_STEP(value, before, step, sizes, names)


_APPLY_STEP = lower.apply_step


def _each_mutant(
    monkeypatch: pytest.MonkeyPatch, mutator: Collectives, build: Callable[[], Trajectory]
) -> int:
    """Check that the program passes, and fails with each of its steps altered."""
    monkeypatch.setattr(lower, "apply_step", mutator)
    assert_same_x64(wanted(), build())
    count = mutator.seen
    for pick in range(count):
        mutator.pick, mutator.seen = pick, 0
        assert_fails(build())
    return count


@quick
@pytest.mark.parametrize(
    ("method", "b"),
    [(mw.DataParallel(), 1), pytest.param(mw.Megatron(2, 4), 2, marks=pytest.mark.slow)],
)
def test_one_all_reduce_dropped(monkeypatch, method, b):
    drop = Collectives(lambda step: step.kind == "all-reduce", lambda value, *_: value)
    assert _each_mutant(monkeypatch, drop, lambda: run_method(problem(), method, b)) >= 3


def _reversed_axes(value: Any, before: Any, step: Any, sizes: Any, names: Any) -> Any:
    step = dataclasses.replace(step, axes=tuple(reversed(step.axes)))
    return _APPLY_STEP(value, before, step, sizes, names)


BOTH_AXES = PartitionSpec(("x", "y"))


def _pinned() -> Trajectory:
    """Everything split over both axes: gradients are scattered over one axis, then the other."""
    return run_method(problem(), mw.IntraOp((2, 4)), 1, pins={"0/p/*": BOTH_AXES, "1/*": BOTH_AXES})


@quick
def test_one_order_of_gathered_axes_swapped(monkeypatch):
    swap = Collectives(lambda s: s.kind == "all-gather" and len(s.axes) > 1, _reversed_axes)
    assert _each_mutant(monkeypatch, swap, _pinned) >= 2


class Paths:
    """Takes the place of `path`: in the `pick`-th double scatter the axes change places."""

    def __init__(self) -> None:
        self.pick: int | None = None
        self.seen = 0

    def __call__(self, *args: Any) -> Any:
        steps = list(_PATH(*args))
        for i, (one, two) in enumerate(itertools.pairwise(steps)):
            if one.kind == two.kind == "reduce-scatter" and one.dim == two.dim:
                self.seen += 1
                if self.seen - 1 == self.pick:
                    steps[i : i + 2] = [
                        dataclasses.replace(one, axes=two.axes),
                        dataclasses.replace(two, axes=one.axes),
                    ]
        return steps


_PATH = lower.tensor_path


@pytest.mark.slow
@quick
def test_one_order_of_reduced_axes_swapped(monkeypatch):
    """A sum that is scattered over two axes of one dim, one axis after the other."""
    step, mesh = traced(problem()), CLUSTER.mesh((2, 4))
    swap = Paths()

    def scatters_twice(decision: GraphDecision) -> bool:
        swap.seen = 0
        for change in transfers(step.graph, decision, mesh.sizes):
            assert isinstance(change, Reshard)
            swap(change.tensor, change.before, change.after, mesh)
        return swap.seen > 0

    decision = first_decision(step, mesh, scatters_twice)
    monkeypatch.setattr(lower, "tensor_path", swap)

    def build() -> Trajectory:
        return run(decided_step(step, decision, mesh), problem())

    swap.seen = 0
    assert_same_x64(wanted(), build())
    count = swap.seen
    assert count >= 1
    for pick in range(count):
        swap.pick, swap.seen = pick, 0
        assert_fails(build())


# -- one dropout mask repeated --------------------------------------------------------------------


class Repeated(Shards):
    """Shards that number their iterations as if they were the first part."""

    def __init__(self, inner: Shards) -> None:
        self.rule, self._inner = inner.rule, inner

    def parts(self, loop: int) -> int:
        return self._inner.parts(loop)

    def block_start(self, loop: int) -> Any:
        return 0

    def global_index(self, loop: int) -> Any:
        return jnp.arange(self.local_size(loop), dtype=jnp.int32)

    def is_first(self, loop: int) -> Any:
        return self._inner.is_first(loop)


@quick
@pytest.mark.parametrize(("where", "b"), [(SpaceShards, 1), (TimeShards, 2)])
def test_one_dropout_mask_repeated(monkeypatch, where, b):
    active = False

    def draw(eqn: Any, shards: Shards, operands: Any) -> Any:
        repeat = active and isinstance(shards, where)
        return local_bits(eqn, Repeated(shards) if repeat else shards, operands)

    rules = {**rule_table.RULES, "random_bits": PrimitiveRule(bits_rule, draw)}
    monkeypatch.setattr(rule_table, "RULES", rules)
    assert_same_x64(wanted(), run_method(problem(), mw.DataParallel(), b))
    active = True
    assert_fails(run_method(problem(), mw.DataParallel(), b))


# -- a replicated term counted more than once -----------------------------------------------------


@cache
def table_problem() -> Problem:
    """Rows of a product are added to a whole table, sums of rows to a whole carry."""
    rng = np.random.default_rng(0)

    def step(state, batch):
        w = state["w"]
        table = state["table"].at[batch["index"]].add(batch["x"] @ w)
        stack = jnp.stack([batch["x"], batch["x"] ** 2])
        carry, _ = jax.lax.scan(lambda c, x: (c + x.sum(0), None), w[0], stack)
        return {"table": table, "w": w * 0.9}, (w + batch["x"].T @ batch["x"], carry)

    state = {k: jnp.asarray(rng.normal(size=(8, 8))) for k in ("table", "w")}
    calls = tuple(
        ({"x": rng.normal(size=(16, 8)), "index": rng.integers(0, 8, 16, dtype=np.int32)},)
        for _ in range(NUM_STEPS)
    )
    return Problem(step=step, state=state, calls=calls)


@quick
def test_a_whole_table_counted_more_than_once_over_time(monkeypatch):
    """The base of a scatter-add belongs to the first part of its rows."""
    want = reference(table_problem())
    assert_same_x64(want, run_method(table_problem(), mw.DataParallel(), 2))
    monkeypatch.setattr(TimeShards, "is_first", lambda self, loop: True)
    assert_fails(run_method(table_problem(), mw.DataParallel(), 2), want)


@quick
def test_a_whole_table_counted_on_every_device(monkeypatch):
    want = reference(table_problem())
    step, mesh = traced(table_problem()), CLUSTER.mesh((8,))
    (place,) = (i for i, op in enumerate(step.graph.operators) if op.kind == "scatter-add")

    def sums_rows(decision: GraphDecision) -> bool:
        chosen = decision.operators[place]
        return chosen.results[0].partial == (0,) and chosen.strategy[0] >= 0

    decision = first_decision(step, mesh, sums_rows)
    assert_same_x64(want, run(decided_step(step, decision, mesh), table_problem()))
    monkeypatch.setattr(SpaceShards, "is_first", lambda self, loop: True)
    assert_fails(run(decided_step(step, decision, mesh), table_problem()), want)


@quick
def test_a_whole_carry_counted_more_than_once_over_time(monkeypatch):
    want = reference(table_problem())
    convert = emit._Block._convert

    def unmasked(self: Any, ident: int, state: Any, value: Any) -> Any:
        if state.kind == WHOLE and value.kind == PARTIAL:
            return self.get(ident, state)
        return convert(self, ident, state, value)

    monkeypatch.setattr(emit._Block, "_convert", unmasked)
    assert_fails(run_method(table_problem(), mw.DataParallel(), 2), want)


@quick
def test_a_whole_term_counted_on_every_device(monkeypatch):
    """A plan that adds whole and partial terms masks the whole ones."""
    want = reference(table_problem())
    step, mesh = traced(table_problem()), CLUSTER.mesh((8,))
    unmask = Collectives(lambda step: step.kind == "mask", lambda value, *_: value)
    monkeypatch.setattr(lower, "apply_step", unmask)

    def masks_a_float(decision: GraphDecision) -> bool:
        made = [r for r in transfers(step.graph, decision, mesh.sizes) if isinstance(r, Reshard)]
        masked = [r.tensor for r in made if r.after.partial]
        return bool(masked) and all(tensor.dtype == "float64" for tensor in masked)

    decision = first_decision(step, mesh, masks_a_float)

    def build() -> Trajectory:
        return run(decided_step(step, decision, mesh), table_problem())

    assert_same_x64(want, build())
    count = unmask.seen
    assert count, "the decision masks nothing: choose another seed"
    for pick in range(count):
        unmask.pick, unmask.seen = pick, 0
        assert_fails(build(), want)


# -- the comparison itself ------------------------------------------------------------------------


def test_a_replica_that_differs_is_seen_though_the_first_is_right():
    mesh = jax.make_mesh((8,), ("x",))
    sharding = jax.sharding.NamedSharding(mesh, PartitionSpec())
    value = np.arange(4.0, dtype=np.float32)
    parts = [jax.device_put(value + (d.id == 7) * 1e-6, d) for d in jax.devices()]
    array = jax.make_array_from_single_device_arrays((4,), sharding, parts)
    np.testing.assert_array_equal(np.asarray(array), value)
    with pytest.raises(AssertionError, match="replicas differ"):
        whole_from_shards(array, "leaf")
    same = jax.device_put(value, sharding)
    np.testing.assert_array_equal(whole_from_shards(same), value)


@quick
@pytest.mark.parametrize("change", ["dtype", "tree", "integer", "nan"])
def test_other_dtypes_trees_integers_and_nans_are_seen(change):
    end = {"a": np.ones(2), "n": np.arange(2)}
    want = Trajectory(start=end, state=end, outs=())
    assert_same_x64(want, want)
    state = dict(want.state)
    if change == "dtype":
        state["a"] = state["a"].astype(np.float32)
    elif change == "tree":
        state["b"] = state.pop("a")
    elif change == "integer":
        state["n"] = np.asarray([0, 2])
    else:
        state["a"] = np.asarray([1.0, np.nan])
    assert_fails(dataclasses.replace(want, state=state), want)


def test_the_mutated_step_is_the_step_itself_when_nothing_changes():
    step = parallel_step(problem("float32"), mw.DataParallel())
    assert_same_fp32(wanted("float32"), run(step, problem("float32")))
