"""Each program of a layer sends what the plan of its part says, and nothing else (I2)."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

import meshwise as mw
from doubles.few import few
from doubles.layered_steps import SIGNATURE
from doubles.planned_stages import planned_stages
from meshwise.cluster.collectives import collective_time_s
from meshwise.cluster.cpu import cpu_cluster
from meshwise.inter.layer_cost.arrivals import arrival_works, planned_neighbours
from meshwise.inter.layer_cost.footprint import footprint, joint_footprint
from meshwise.inter.search import finishing
from meshwise.inter.search.layer_work import layer_work
from meshwise.models.named import model_config
from meshwise.models.steps import model_step
from meshwise.planner.pipeline import layers_of
from meshwise.runtime.device_memory import device_peak_bytes
from meshwise.runtime.fidelity import bytes_of, compiled_bytes_of
from meshwise.runtime.pipeline.build import compiled_layers
from meshwise.runtime.pipeline.memory import measured_footprint, program_bytes
from oracle.tolerances import MEMORY_ABOVE, MEMORY_BELOW

pytestmark = pytest.mark.usefixtures("quick_steps")


@pytest.mark.parametrize("splits_backward", few([False, True], [False]))
def test_collectives_of_all_programs_are_those_of_the_plan(splits_backward: bool) -> None:
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))
    made = model_step(model_config("gpt-mini"), 8, optimizer)
    state = jax.eval_shape(made.create, jax.random.key(0))
    layers, _ = layers_of(made.step, (state, made.batch), {}, SIGNATURE, 4)
    choices = planned_stages(layers, 2, [(0, 1, (2, 2), "none"), (2, 3, (2, 2), "full")])
    kinds: Counter[str] = Counter()
    for layer in compiled_layers(layers, choices, 2, splits_backward=splits_backward):
        loops = set(layer.parts.passes)
        found: Counter[str] = Counter()
        for program in layer.parts.programs:
            times = 2 if program in loops else 1
            found += compiled_bytes_of(program.run.as_text(), layer.logical.sizes, times)
        planned = layer.planned
        work = layer_work(
            planned.piece,
            planned.roles.decision,
            layer.logical,
            splits_backward=splits_backward,
        )
        assert found == bytes_of(work.collectives), layer.layer
        kinds.update(found)
    assert set(kinds) == {"all-gather", "all-reduce", "all-to-all", "permute", "reduce-scatter"}


def test_changes_of_layout_of_what_skips_layers_are_planned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each layer adds what the first one made, and lies as suits its own weights."""

    def loss(weights: Any, rows: Any) -> Any:
        first = x = jnp.tanh(rows @ weights[0])
        for w in weights[1:]:
            x = jnp.tanh(x @ w) + first
        return jnp.mean((x - rows) ** 2)

    def step(weights: Any, rows: Any) -> Any:
        value, grads = mw.value_and_grad(loss)(weights, rows)
        return [w - 0.1 * g for w, g in zip(weights, grads, strict=True)], value

    weights = [jax.ShapeDtypeStruct((256, 256), jnp.float32)] * 4
    rows = jax.ShapeDtypeStruct((512, 256), jnp.float32)
    asked: dict[str, Any] = {
        "method": mw.Auto(stages=2, schedule="1f1b"),
        "num_microbatches": 4,
        "cluster": cpu_cluster(4),
        "batch_argnums": (1,),
    }
    parallel = mw.parallelize(step, **asked)
    for stage in parallel.fidelity(weights, rows):
        assert stage.planned_bytes == stage.compiled_bytes
        ratio = stage.predicted_peak_bytes / stage.compiled_peak_bytes
        assert 1 - MEMORY_BELOW <= ratio <= 1 + MEMORY_ABOVE
    # They take the time of their collectives, which is part of the time of the stage.
    plan = parallel.plan(weights, rows)
    # A file that lacks them gets them back.
    again = mw.parallelize(step, method=mw.Replay(dataclasses.replace(plan, collectives=())))
    assert again.plan(weights, rows).collectives == plan.collectives
    layers, _ = layers_of(step, (weights, rows), {}, SIGNATURE, lambda _: plan.cuts)
    works = arrival_works(
        planned_neighbours(
            plan.stages,
            plan.mesh_of_stage,
            plan.decisions,
            lambda s, layer: layers.graph(layer.layer, layer.layer, 4, plan.stages[s].remat),
            layers.crossing_names,
        )
    )
    assert any(work.work.collectives for work in works)
    for stage in plan.stages:
        mine = [works[layer.layer] for layer in stage.layers]
        names = list(stage.mesh.names)
        sent = [
            item.count
            * collective_time_s(
                item.kind, tuple(map(names.index, item.axes)), item.num_bytes, stage.mesh
            )
            for work in mine
            for item in work.work.collectives
        ]
        in_passes = sum(work.forward_s + work.backward_s for work in mine)
        assert 4 * in_passes == pytest.approx(sum(sent))
        assert in_passes < stage.forward_s + stage.backward_s
    # The search does not see this time: the plan says so where it is much.
    assert not plan.warnings
    monkeypatch.setattr(finishing, "_MUCH", 0.01)
    warned = mw.parallelize(step, **asked).plan(weights, rows)
    (warning,) = warned.warnings
    # It says why the simulation is above the formula, so it stands beside the step time, too.
    summary, warnings = (" ".join(part.split()) for part in warned.explain().split("\nWarnings"))
    assert warning in summary.partition(" bubble ")[0]
    assert warning in warnings
    assert warning.startswith("values that several layers read change their layout for 375 us of")


def telling_step(is_orthogonal: bool) -> tuple[Any, Any, Any]:
    """A step of Adam, or of products of gradients, that returns how far the weights moved."""
    optimizer = optax.adam(1e-3)

    def loss(weights: Any, rows: Any) -> Any:
        for w in weights:
            rows = jnp.tanh(rows @ w)
        return jnp.mean(rows**2)

    def step(state: Any, rows: Any) -> Any:
        weights, moments = state
        value, grads = mw.value_and_grad(loss)(weights, rows)
        if is_orthogonal:
            updates = [-0.1 * (g @ g.T @ g) for g in grads]
        else:
            updates, moments = optimizer.update(grads, moments, weights)
        moved = jnp.sqrt(sum(jnp.sum(jnp.tanh(u) ** 2) for u in updates))
        new = [w + u / jnp.maximum(1, moved) for w, u in zip(weights, updates, strict=True)]
        length = jnp.sqrt(sum(jnp.sum(jnp.tanh(w) ** 2) for w in new))
        return (new, moments), (value, moved, length)

    weights = [jax.ShapeDtypeStruct((256, 256), jnp.float32)] * 4
    moments = jax.eval_shape(optimizer.init, weights)
    return step, (weights, moments), jax.ShapeDtypeStruct((16, 256), jnp.float32)


@pytest.mark.parametrize("is_orthogonal", [False, True])
def test_what_joins_layers_in_the_update_is_computed_again_or_counted(is_orthogonal: bool) -> None:
    step, *args = telling_step(is_orthogonal)
    layers, _ = layers_of(step, tuple(args), {}, SIGNATURE, 4)
    choices = planned_stages(layers, 2, [(0, 3, (1, 1), "none")])
    predicted, measured = [], []
    for layer in compiled_layers(layers, choices, 2):
        planned = layer.planned
        # An update of products is held by all layers until its length is known.
        assert len(planned.programs.handed) == is_orthogonal
        predicted.append(footprint(planned.piece, planned.roles.decision, layer.logical))
        measured.append(layer.parts.map(lambda _, p: program_bytes(p, device_peak_bytes(p.run))))
    ratio = joint_footprint(predicted).peak_bytes(1) / measured_footprint(measured).peak_bytes(1)
    assert 1 - MEMORY_BELOW <= ratio <= 1 + MEMORY_ABOVE
