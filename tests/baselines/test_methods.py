"""Methods: what they communicate; IntraOp finds them where they are right, and is never dearer."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import meshwise as mw
from doubles.graph_builders import DEVICE, mesh, perceptron
from meshwise.baselines.methods import BASELINES, plan_baseline
from meshwise.baselines.roles import BATCH, OPTIMIZER, PARAMETER, input_info
from meshwise.baselines.search import MeshPlace, Search, flat_shapes
from meshwise.cluster.cpu import cpu_cluster
from meshwise.errors import InfeasibleError, PlanError
from meshwise.intra.options import IntraOptions
from meshwise.intra.plan_graph import plan_graph
from meshwise.intra.price import step_time_s
from meshwise.intra.regions import regions
from meshwise.plan.counts.collectives import collectives
from meshwise.plan.verify import verify_decision

ONE_AXIS = mesh(8, bandwidths=(10e9,))
TWO_AXES = mesh(2, 4, bandwidths=(1e9, 30e9))


def problem(layers=3, batch=512, width=256, momentum=True):
    graph = perceptron(layers, batch, width, momentum=momentum, bias=True)
    last = len(graph.inputs)
    return graph, {last - 2: 0, last - 1: 0}


def kinds(graph, decision, on, at_least=1024):
    found = Counter()
    for c in collectives(graph, decision, on):
        if c.num_bytes >= at_least:
            found[c.kind] += c.count
    return dict(found)


def test_roles_follow_from_the_graph():
    graph, batch = problem(layers=2)
    roles = input_info(graph, batch).roles
    assert roles == (PARAMETER,) * 4 + (OPTIMIZER,) * 4 + (BATCH,) * 2


def test_data_parallel_only_reduces_gradients():
    graph, batch = problem()
    result = plan_baseline("DataParallel()", graph, ONE_AXIS, batch, IntraOptions())
    assert kinds(graph, result.decision, ONE_AXIS) == {"all-reduce": 6}
    for i, layout in enumerate(result.decision.inputs):
        assert bool(layout.dims[0]) == (i in batch)


def test_data_parallel_updates_the_whole_state_however_dear():
    slow = mesh(8, bandwidths=(1e12,), device=dataclasses.replace(DEVICE, memory_bytes_per_s=1e9))
    graph, batch = problem()
    result = plan_baseline("DataParallel()", graph, slow, batch, IntraOptions())
    assert kinds(graph, result.decision, slow) == {"all-reduce": 6}


def test_zero2_scatters_gradients_and_gathers_parameters():
    graph, batch = problem()
    result = plan_baseline("Zero2()", graph, ONE_AXIS, batch, IntraOptions())
    found = kinds(graph, result.decision, ONE_AXIS)
    assert found == {"reduce-scatter": 6, "all-gather": 6}


def test_zero3_gathers_parameters_where_they_are_used():
    graph, batch = problem()
    result = plan_baseline("Zero3()", graph, ONE_AXIS, batch, IntraOptions())
    found = kinds(graph, result.decision, ONE_AXIS)
    assert found["reduce-scatter"] == 6
    assert found["all-gather"] >= 6
    assert all(any(w.dims) for w in result.decision.inputs)


def test_megatron_reduces_activations_along_the_second_axis():
    graph, batch = problem(layers=2, batch=128, width=512)
    on = mesh(2, 4, bandwidths=(1e9, 30e9))
    result = plan_baseline("Megatron(dp=2, tp=4, pp=1)", graph, on, batch, IntraOptions())
    along = Counter(
        (c.kind, c.axes) for c in collectives(graph, result.decision, on) if c.num_bytes > 4096
    )
    assert along["all-reduce", ("y",)] == 1
    assert along["all-reduce", ("x",)] == 2


def test_megatron_keeps_logits_split_along_the_vocabulary():
    batch, length, width, vocabulary = 8, 256, 256, 16384

    def train_step(weights, rows):
        def loss(weights):
            logits = jnp.tanh(rows["x"] @ weights["up"]) @ weights["out"]
            picked = jnp.take_along_axis(jax.nn.log_softmax(logits), rows["y"][..., None], axis=-1)
            return -jnp.mean(picked)

        value, grads = jax.value_and_grad(loss)(weights)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads), value

    spec = jax.ShapeDtypeStruct
    weights = {
        "up": spec((width, width), jnp.float32),
        "out": spec((width, vocabulary), jnp.float32),
    }
    rows = {
        "x": spec((batch, length, width), jnp.float32),
        "y": spec((batch, length), jnp.int32),
    }
    cluster = mw.Cluster.virtual("1x dgx-h100")
    plan = mw.parallelize(train_step, method=mw.Megatron(2, 4), cluster=cluster).plan(weights, rows)
    assert {item.kind for item in plan.collectives if item.num_bytes > 4096} == {"all-reduce"}
    logits_bytes = batch // 2 * length * vocabulary // 4 * 4
    assert all(item.num_bytes < logits_bytes for item in plan.collectives)


@pytest.mark.parametrize(("heads", "is_told"), [(2, True), (4, False)])
def test_megatron_says_which_heads_its_tensor_axis_does_not_divide(heads: int, is_told: bool):
    def train_step(weights: Any, x: Any) -> Any:
        def loss_fn(w: Any) -> Any:
            q, k, v = jnp.einsum("btd,ndhe->nbthe", x, w)
            scores = jax.nn.softmax(jnp.einsum("bthe,bshe->bhts", q, k))
            return jnp.mean(jnp.einsum("bhts,bshe->bthe", scores, v) ** 2)

        loss, grads = mw.value_and_grad(loss_fn)(weights)
        return weights - grads, loss

    weights = jax.ShapeDtypeStruct((3, 16, heads, 8), "float32")
    rows = jax.ShapeDtypeStruct((4, 8, 16), "float32")
    cluster = cpu_cluster(4)
    plan = mw.parallelize(train_step, method=mw.Megatron(1, 4), cluster=cluster).plan(weights, rows)
    told = [warning for warning in plan.warnings if "tp=4 divides no dim of" in warning]
    assert bool(told) is is_told
    assert all("has 2 there; take a tp that divides 2" in warning for warning in told)


def test_an_unknown_method_is_named():
    graph, batch = problem()
    with pytest.raises(PlanError, match="no method 'Zero9'"):
        plan_baseline("Zero9", graph, ONE_AXIS, batch, IntraOptions())


@pytest.mark.parametrize("on", [ONE_AXIS, TWO_AXES, mesh(2, 2, 2, bandwidths=(1e9, 5e9, 30e9))])
@pytest.mark.parametrize("shape", [(2, 2048, 64), (3, 64, 512), (4, 256, 256)])
def test_intra_op_is_never_dearer(on, shape):
    graph, batch = problem(*shape)
    best = plan_graph(graph, on, IntraOptions())
    assert best.status == "optimal"
    price = step_time_s(graph, best.decision, on)
    assert price <= best.objective_s * (1 + 1e-9)
    for name in BASELINES:
        if name == "Megatron" and len(on.sizes) != 2:
            continue
        other = plan_baseline(name, graph, on, batch, IntraOptions())
        verify_decision(graph, other.decision, on)
        assert price <= step_time_s(graph, other.decision, on) * (1 + 1e-9), name


def test_data_parallel_is_found_where_activations_outweigh_parameters():
    # 65,536 rows of width 500: a gradient has 1 MB, an activation 131 MB.  500 is no multiple of
    # 8, so weights and gradients cannot be split; otherwise a sharded update would be cheaper.
    graph, _ = problem(2, 65536, 500, momentum=False)
    result = plan_graph(graph, ONE_AXIS, IntraOptions())
    assert kinds(graph, result.decision, ONE_AXIS, at_least=2**19) == {"all-reduce": 2}
    assert all(not any(w.dims) for w in result.decision.inputs[:4])
    # The batch is the first loop of the forward products, the reduced one of the others.
    heavy = [
        (op.rule.loops[d.strategy[0]].size if d.strategy[0] >= 0 else 0)
        for op, d in zip(graph.operators, result.decision.operators, strict=True)
        if op.heavy
    ]
    assert heavy == [65536] * 5


def test_weight_update_sharding_is_found_where_the_update_is_dear():
    # Reduce-scatter and all-gather cost what all-reduce costs, and the update (memory bound) runs
    # on an eighth of the state: with momentum and no latency ZeRO-2 beats data parallel.
    graph, batch = problem(2, 65536, 512)
    result = plan_graph(graph, ONE_AXIS, IntraOptions())
    found = kinds(graph, result.decision, ONE_AXIS, at_least=2**20)
    assert found["reduce-scatter"] == 2
    plain = plan_baseline("DataParallel", graph, ONE_AXIS, batch, IntraOptions())
    assert result.objective_s < plain.objective_s
    momenta = result.decision.inputs[4:6]
    assert all(any(w.dims) for w in momenta)


@pytest.mark.slow
def test_zero3_is_found_where_memory_forces_it():
    # Many rows, so that reducing activations is dear; state of 12 x 1 MiB.  ZeRO-2 keeps the
    # parameters whole and does not fit: some must be split and gathered where they are used.
    graph, batch = problem(3, 16384, 512)
    two = plan_baseline("Zero2", graph, ONE_AXIS, batch, IntraOptions())
    three = plan_baseline("Zero3", graph, ONE_AXIS, batch, IntraOptions())
    limit = int(three.peak_bytes * 1.02)
    assert limit < two.peak_bytes
    tight = plan_graph(graph, ONE_AXIS, IntraOptions(memory_bytes=limit))
    assert tight.peak_bytes <= limit
    split = [i for i in range(3) if any(tight.decision.inputs[i].dims)]
    assert split
    gathered = Counter(
        c.num_bytes for c in collectives(graph, tight.decision, ONE_AXIS) if c.kind == "all-gather"
    )
    assert gathered[512 * 512 * 4] >= len(split)


def test_megatron_is_found_where_weights_outweigh_activations():
    # 64 rows of width 2048 at small batch: reducing one activation (512 KiB) beats reducing two
    # gradients (16 MiB each); the first weight is split by column, the second by row.
    graph, _ = problem(2, 64, 2048, momentum=False)
    result = plan_graph(graph, ONE_AXIS, IntraOptions())
    found = kinds(graph, result.decision, ONE_AXIS, at_least=2**16)
    assert sum(found.values()) <= 2
    first, second = result.decision.inputs[:2]
    assert first.dims == ((), (0,))
    assert second.dims == ((0,), ())


def test_sequence_parallel_is_found_where_light_work_is_dear():
    # Slow memory makes the element-wise work between the row-split and the next column-split
    # product dear: reduce-scatter, light work on an eighth, all-gather costs the communication of
    # the all-reduce.
    slow = dataclasses.replace(DEVICE, memory_bytes_per_s=20e9)
    on = mesh(8, bandwidths=(10e9,), device=slow)
    graph, _ = problem(4, 512, 2048, momentum=False)
    result = plan_graph(graph, on, IntraOptions())
    found = kinds(graph, result.decision, on, at_least=2**20)
    assert found.get("reduce-scatter", 0) >= 1
    assert found.get("all-gather", 0) >= 1


def test_meshes_of_methods_that_treat_all_axes_alike():
    assert flat_shapes(1, 4) == ((4,),)
    assert flat_shapes(4, 1) == ((4,),)
    assert flat_shapes(2, 4) == ((8,), (2, 4))


def test_intra_op_is_never_dearer_under_a_limit():
    graph, batch = problem(3, 2048, 256)
    three = plan_baseline("Zero3", graph, ONE_AXIS, batch, IntraOptions())
    options = IntraOptions(memory_bytes=three.peak_bytes)
    place = MeshPlace(
        graph=graph, mesh=ONE_AXIS, batch_dims=batch, options=options, parts=regions(graph)
    )
    search = Search()
    search.over([place])
    best = search.found().result
    assert best.peak_bytes <= three.peak_bytes
    assert best.objective_s <= step_time_s(graph, three.decision, ONE_AXIS) * (1 + 1e-9)


def test_too_little_memory_names_what_is_largest():
    graph, _ = problem()
    told = r"Largest there: .* in .*Use more devices.*nnx\.remat, eqx\.filter_checkpoint"
    with pytest.raises(InfeasibleError, match=told):
        plan_graph(graph, ONE_AXIS, IntraOptions(memory_bytes=10_000))


def test_equal_inputs_give_equal_plans():
    graph, batch = problem()
    for on in (ONE_AXIS, TWO_AXES):
        assert (
            plan_graph(graph, on, IntraOptions()).decision
            == plan_graph(graph, on, IntraOptions()).decision
        )
        one, two = (plan_baseline("Zero3", graph, on, batch, IntraOptions()) for _ in range(2))
        assert one.decision == two.decision


def test_a_mean_with_several_users_is_reduced_once():
    """As late as may be it would be reduced at each of its users."""

    def step(scale: Any, x: Any) -> Any:
        mean = x.mean(0)
        squares = jnp.square(x).mean(0)
        return scale * mean, (x - mean) * jax.lax.rsqrt(squares - jnp.square(mean) + 1.0)

    scale, x = (jax.ShapeDtypeStruct(s, jnp.float32) for s in ((256,), (512, 256)))
    plan = mw.parallelize(step, method=mw.DataParallel(), cluster=cpu_cluster(8)).plan(scale, x)
    assert [(c.kind, c.num_bytes) for c in plan.collectives] == [("all-reduce", 1024)] * 2


def test_the_gradient_of_a_table_is_reduced_once_for_all_micro_batches():
    """A lookup's gradient is a sum over rows like that of a product, and is accumulated as one."""

    def step(table: Any, batch: Any) -> Any:
        loss, gradient = mw.value_and_grad(lambda t: jnp.mean(jnp.square(t[batch])))(table)
        return table - gradient, loss

    table = jax.ShapeDtypeStruct((64, 32), jnp.float32)
    rows = jax.ShapeDtypeStruct((64,), jnp.int32)
    wrapped = mw.parallelize(
        step, method=mw.DataParallel(), cluster=cpu_cluster(8), num_microbatches=4
    )
    large = [c for c in wrapped.plan(table, rows).collectives if c.num_bytes == 64 * 32 * 4]
    assert [(c.kind, c.count) for c in large] == [("all-reduce", 1)]
