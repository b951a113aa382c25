"""Steps whose layers are stacks, taken apart: the same numbers, and the plan of separate layers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshwise as mw
from doubles.layered_steps import CLIPPED, SIGNATURE, Step, assert_equal, gpt_step
from doubles.scanned_steps import LAMB, Args, remat_scan, scanned_gpt, second_dim
from meshwise.cluster.spec import ClusterSpec
from meshwise.errors import TraceError
from meshwise.jax_compat.jaxprs import jaxpr_as_fun
from meshwise.pieces.piece import PieceGraph
from meshwise.planner.pipeline import layers_of, plan_pipeline
from meshwise.request.pipeline_request import PipelineRequest
from meshwise.trace.layers.stacks.unstack import Leaf, unstacked
from meshwise.trace.step import open_step
from oracle.problem import quick_jit


def apart(leaves: tuple[Leaf, ...], values: Any) -> list[Any]:
    found: list[Any] = []
    for leaf, value in zip(leaves, values, strict=True):
        whole = leaf.dim is None
        found += (
            [value] if whole else [jnp.take(value, k, leaf.dim) for k in range(len(leaf.places))]
        )
    return found


STEPS: dict[str, tuple[Callable[[], tuple[Step, Args]], int, int]] = {
    "layers in layers": (remat_scan, 3, 3 * 2),
    "another dim, dropout": (second_dim, 3, 3 * 2),
    "gpt": (lambda: scanned_gpt(dropout=0.2), 2, 3 * 16),
    "gpt, recomputed": (lambda: scanned_gpt(LAMB, remat=True), 2, 3 * 16),
}


@pytest.mark.usefixtures("quick_steps", "x64")
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if "gpt" in name else ()) for name in STEPS],
)
def test_layers_alone_are_the_step(name: str) -> None:
    make, num_layers, num_stacks = STEPS[name]
    step, args = make()
    found = unstacked(open_step(step, args, {}, SIGNATURE))
    stacks = [leaf for leaf in found.arguments if leaf.dim is not None]
    assert {len(leaf.places) for leaf in stacks} == {num_layers}
    # Parameters of the layers, with their two moments.
    assert len(stacks) == num_stacks
    made = quick_jit(jaxpr_as_fun(found.step.closed))(
        *apart(found.arguments, jax.tree.leaves(args))
    )
    expected = jax.tree.leaves(quick_jit(step)(*args))
    assert_equal(made, apart(found.results, expected))


@pytest.mark.slow
def test_layers_are_those_of_a_model_without_scan() -> None:
    one, two = (
        layers_of(*gpt_step(CLIPPED, num_layers=3, scan_layers=scan, **SINGLE), {}, SIGNATURE)
        for scan in (False, True)
    )
    assert one[1] == two[1]
    assert one[0].classes == two[0].classes
    k = len(one[0].ranges) // 2
    pieces = [layers.graph(k, k, 2) for layers, _ in (one, two)]
    assert _contents(pieces[0]) == _contents(pieces[1])


def _contents(piece: PieceGraph) -> Any:
    graph = piece.graph
    inside = graph.operators[piece.loop].bodies[0]
    return (
        Counter((op.kind, inside.tensors[op.outputs[0]].shape) for op in inside.operators),
        Counter(graph.tensors[i].shape for i in graph.inputs),
        len(piece.state),
    )


@pytest.mark.slow
def test_the_plan_is_that_of_separate_layers() -> None:
    cluster = ClusterSpec.virtual("2x p3.2xlarge")
    request = PipelineRequest(cluster=cluster, num_microbatches=(2,), num_stages=2)
    one, two = (
        plan_pipeline(
            *gpt_step(CLIPPED, num_layers=3, scan_layers=scan, **SINGLE), {}, SIGNATURE, request
        ).plan
        for scan in (False, True)
    )
    # Squares of gradients are added in another order.
    assert two.step_time_s == pytest.approx(one.step_time_s, rel=1e-5)
    assert two.peak_bytes == one.peak_bytes
    assert [(s.first_layer, s.last_layer) for s in one.stages] == [
        (s.first_layer, s.last_layer) for s in two.stages
    ]


SINGLE = {"dtype": "float32", "param_dtype": "float32"}


def net(params: Any, x: Any, *, layer: Callable[..., Any], around: Callable[..., Any]) -> Any:
    def body(x: Any, w: Any) -> Any:
        return layer(x, w), None

    return around(lambda x, w: jax.lax.scan(body, x, w)[0])(x, params["stack"])


def small(loss: Callable[[Any, Any], Any], tx: optax.GradientTransformation) -> tuple[Step, Args]:
    def step(state: Any, batch: Any) -> Any:
        params, opt = state
        value, grads = mw.value_and_grad(loss)(params, batch)
        updates, opt = tx.update(grads, opt, params)
        return (optax.apply_updates(params, updates), opt), value

    params = {"stack": jnp.asarray(np.random.default_rng(0).normal(size=(3, 4, 4)))}
    return step, ((params, tx.init(params)), jnp.ones((4, 4)))


def product(x: Any, w: Any) -> Any:
    return jnp.tanh(x @ w)


def test_what_is_no_stack_of_layers_stays() -> None:
    def over_rows(params: Any, batch: Any) -> Any:
        def body(total: Any, row: Any) -> Any:
            return total + jnp.sum(jnp.tanh(row @ params["stack"][0])), None

        return jax.lax.scan(body, 0.0, batch)[0]

    step, args = small(over_rows, optax.sgd(0.1))
    opened = open_step(step, args, {}, SIGNATURE)
    found = unstacked(opened)
    assert found.step is opened
    assert not found.notes


def test_without_a_loss_the_caller_says_what_the_parameters_are() -> None:
    def forward(params: Any, x: Any) -> Any:
        return net(params, x, layer=product, around=lambda f: f)

    args = {"stack": jnp.asarray(np.random.default_rng(0).normal(size=(3, 4, 4)))}, jnp.ones((4, 4))
    opened = open_step(forward, args, {}, SIGNATURE)
    assert unstacked(opened).step is opened
    found = unstacked(opened, (0,))
    assert found.step.names == ("0/stack[0]", "0/stack[1]", "0/stack[2]", "1")
    (made,) = quick_jit(jaxpr_as_fun(found.step.closed))(*args[0]["stack"], args[1])
    np.testing.assert_allclose(made, quick_jit(forward)(*args), rtol=1e-6)


def test_a_scan_that_is_hidden_is_told() -> None:
    step, args = small(
        lambda p, x: jnp.sum(net(p, x, layer=product, around=jax.checkpoint)), optax.sgd(0.1)
    )
    found = unstacked(open_step(step, args, {}, SIGNATURE))
    (note,) = found.notes
    assert note.startswith("the scan at test_unstack.py:")
    assert re.search(r"stays whole: it is inside of (checkpoint|remat\d) at test_unstack.py:", note)


def test_an_update_of_all_layers_at_once_is_refused() -> None:
    tx = optax.flatten(optax.adam(1e-2))
    step, args = small(lambda p, x: jnp.sum(net(p, x, layer=product, around=lambda f: f)), tx)
    # More than what layers may join.
    params = {"stack": jax.ShapeDtypeStruct((3, 256, 256), jnp.float32)}
    state = params, jax.eval_shape(tx.init, params)
    with pytest.raises(TraceError, match="an optimizer that flattens all parameters cannot be cut"):
        layers_of(step, (state, jax.ShapeDtypeStruct((4, 256), jnp.float32)), {}, SIGNATURE, 3)
    del args
