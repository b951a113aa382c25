"""One search over all meshes: what a plan says, and what an error names, is about all of them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

import meshwise as mw
from doubles.few import few
from meshwise.baselines import search
from meshwise.errors import InfeasibleError
from meshwise.intra.limit import judged
from meshwise.units import bytes_text
from oracle.parallel import CLUSTER

VIEWS = tuple(shape for shape in CLUSTER.mesh_shapes() if len(shape) <= 2)
FLOAT = jnp.float32


def _trained(loss: Any, init: Any) -> tuple[Any, Any]:
    """A step of Adam and the shapes of its state."""
    tx = optax.adam(1e-3)

    def step(state: Any, batch: Any) -> Any:
        value, grads = mw.value_and_grad(lambda p: loss(p, batch))(state["params"])
        updates, opt = tx.update(grads, state["opt"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "opt": opt}, value

    def create() -> Any:
        params = init()
        return {"params": params, "opt": tx.init(params)}

    return step, jax.eval_shape(create)


def _perceptron() -> tuple[Any, Any, Any]:
    def loss(params: Any, batch: Any) -> Any:
        h = batch["x"]
        for w in params:
            h = jnp.tanh(h @ w)
        return jnp.mean((h - batch["y"]) ** 2)

    step, state = _trained(loss, lambda: [jnp.zeros((256, 256))] * 4)
    rows = jax.ShapeDtypeStruct((128, 256), FLOAT)
    return step, state, {"x": rows, "y": rows}


def _attention() -> tuple[Any, Any, Any]:
    def loss(params: Any, batch: Any) -> Any:
        h = batch["x"]
        q, k, v = (jnp.einsum("bsm,mhd->bhsd", h, params[n]) for n in "qkv")
        weights = jax.nn.softmax(jnp.einsum("bhsd,bhtd->bhst", q, k))
        h = h + jnp.einsum("bhst,bhtd,hdm->bsm", weights, v, params["o"])
        return jnp.mean((h + jax.nn.gelu(h @ params["a"]) @ params["b"]) ** 2)

    def init() -> Any:
        heads = {n: jnp.zeros((64, 4, 16)) for n in "qkv"}
        return {
            **heads,
            "o": jnp.zeros((4, 16, 64)),
            "a": jnp.zeros((64, 256)),
            "b": jnp.zeros((256, 64)),
        }

    step, state = _trained(loss, init)
    return step, state, {"x": jax.ShapeDtypeStruct((16, 32, 64), FLOAT)}


def _convolutions() -> tuple[Any, Any, Any]:
    def conv(x: Any, w: Any) -> Any:
        dims = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=dims)

    def loss(params: Any, batch: Any) -> Any:
        skip = jax.nn.silu(conv(batch["x"], params["in"]))
        h = jax.nn.silu(conv(skip[:, ::2, ::2], params["mid"]))
        h = jnp.repeat(jnp.repeat(h, 2, axis=1), 2, axis=2)
        return jnp.mean(conv(jnp.concatenate([h, skip], -1), params["out"]) ** 2)

    def init() -> Any:
        shapes = {"in": (3, 3, 4, 16), "mid": (3, 3, 16, 16), "out": (3, 3, 32, 4)}
        return {name: jnp.zeros(shape) for name, shape in shapes.items()}

    step, state = _trained(loss, init)
    return step, state, {"x": jax.ShapeDtypeStruct((16, 16, 16, 4), FLOAT)}


PROGRAMS = {"perceptron": _perceptron, "attention": _attention, "convolutions": _convolutions}


def _plan(program: Any, method: Any = None, memory_bytes: int | None = None) -> Any:
    step, *specs = program
    method = method or mw.IntraOp()
    wrapped = mw.parallelize(step, method=method, cluster=CLUSTER, memory_bytes=memory_bytes)
    return wrapped.plan(*specs)


@functools.cache
def _free(name: str) -> Any:
    """The plan of a program without a limit, which tests share."""
    return _plan(PROGRAMS[name]())


def _needed(text: str) -> int:
    """The bytes that an error names."""
    found = re.search(r"smallest plan found peaks at [^(]*\((\d+) bytes\)", text)
    assert found, text
    return int(found[1])


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_view_has_a_better_plan(name: str) -> None:
    program, best = PROGRAMS[name](), _free(name)
    alone = [_plan(program, mw.IntraOp(shape)) for shape in VIEWS]
    assert best.step_time_s <= min(plan.step_time_s for plan in alone)
    assert best.status == "optimal"
    assert best.gap == 0
    assert best.space.endswith("on the meshes 8, 2x4, 4x2")
    assert all(plan.space.endswith("on this mesh") for plan in alone)


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_view_has_a_better_plan_that_fits(name: str) -> None:
    program = PROGRAMS[name]()
    limit = int(0.9 * _free(name).peak_bytes)
    try:
        best = _plan(program, memory_bytes=limit)
    except InfeasibleError as error:
        needed = _needed(str(error))
        for shape in VIEWS:
            with pytest.raises(InfeasibleError) as other:
                _plan(program, mw.IntraOp(shape), memory_bytes=limit)
            assert needed <= _needed(str(other.value))
        return
    assert best.peak_bytes <= limit
    for shape in VIEWS:
        try:
            other = _plan(program, mw.IntraOp(shape), memory_bytes=limit)
        except InfeasibleError:
            continue
        assert best.step_time_s <= other.step_time_s * (1 + 1e-9)


def test_equal_questions_have_equal_answers() -> None:
    free = _free("perceptron")
    limit = int(0.9 * free.peak_bytes)
    assert _plan(_perceptron()).to_json() == free.to_json()
    first, second = (_plan(_perceptron(), memory_bytes=limit).to_json() for _ in range(2))
    assert first == second


def test_the_gap_is_that_of_the_least_bound_of_all_meshes(monkeypatch: Any) -> None:
    """A mesh on which a cheaper plan is possible makes the plan of another one no optimum."""
    real = search.MeshPlace.prepared

    def prepared(self: search.MeshPlace) -> Any:
        made = real(self)
        if self.mesh.sizes != (2, 4):
            return made
        free = dataclasses.replace(made.free, bound=made.free.bound / 2)
        return dataclasses.replace(made, free=free)

    program, honest = _perceptron(), _free("perceptron")
    monkeypatch.setattr(search.MeshPlace, "prepared", prepared)
    plan = _plan(program)
    assert plan.step_time_s == honest.step_time_s
    assert plan.status == "bounded"
    assert 0.3 < plan.gap < 0.6


@pytest.mark.parametrize("name", few(PROGRAMS, ["perceptron", "convolutions"]))
def test_what_an_error_names_is_enough(name: str) -> None:
    program = PROGRAMS[name]()
    least = min(_plan(program, method).peak_bytes for method in (mw.Zero3(), mw.Heuristic()))
    arguments = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(program[1:]))
    limit = max(_free(name).peak_bytes // 3, arguments // CLUSTER.num_devices + 1)
    with pytest.raises(InfeasibleError, match="no plan .* into") as error:
        _plan(program, memory_bytes=limit)
    needed = _needed(str(error.value))
    assert needed <= least
    plan = _plan(program, memory_bytes=needed)
    assert plan.peak_bytes <= needed


def test_what_an_error_names_does_not_depend_on_the_limit() -> None:
    program = _convolutions()
    peak = _free("convolutions").peak_bytes
    named: set[int] = set()
    for part in (0.3, 0.4):
        with pytest.raises(InfeasibleError) as error:
            _plan(program, memory_bytes=int(part * peak))
        named.add(_needed(str(error.value)))
    assert len(named) == 1


@pytest.mark.parametrize("num_microbatches", [1, "auto"])
def test_arguments_that_all_devices_cannot_hold_are_refused_at_once(
    num_microbatches: Any, monkeypatch: Any
) -> None:
    def prepared(_: search.MeshPlace) -> None:
        raise AssertionError("planned")

    monkeypatch.setattr(search.MeshPlace, "prepared", prepared)
    step, *specs = _perceptron()
    wrapped = mw.parallelize(
        step,
        method=mw.IntraOp(),
        cluster=CLUSTER,
        memory_bytes=100_000,
        num_microbatches=num_microbatches,
    )
    with pytest.raises(InfeasibleError) as error:
        wrapped.plan(*specs)
    total = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(specs[0]))
    text = str(error.value)
    assert f"take {bytes_text(total)}, and the memory of all devices of" in text
    assert "is 781 KiB. They alone" in text
    assert f"{bytes_text(total / 8)} on each" in text
    assert f"or {-(-total // 100_000)} devices like the largest" in text


def test_planning_within_a_limit_solves_a_counted_number_of_problems(monkeypatch: Any) -> None:
    """No clock decides how long it goes on: it is the same work on a slow machine."""
    counts: list[int] = []
    real = judged.solve

    def solve(*args: Any, **options: Any) -> Any:
        counts[-1] += 1
        return real(*args, **options)

    monkeypatch.setattr(judged, "solve", solve)
    program = _attention()
    peak = _plan(program, mw.IntraOp((2, 4))).peak_bytes
    for _ in range(2):
        counts.append(0)
        with contextlib.suppress(InfeasibleError):
            _plan(program, mw.IntraOp((2, 4)), memory_bytes=int(0.7 * peak))
    assert 1 < counts[0] == counts[1] <= 150
