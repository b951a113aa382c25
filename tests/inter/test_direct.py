"""Composed costs of runs against one integer program of all their layers (`joint_runs`).

Without a limit of memory both are equal.  With one the composition has plans at a few prices of
memory, the same price for all layers of a run: it is never below, and above by what a price cannot
tell apart.
"""

from __future__ import annotations

from typing import Any

import pytest
from joint_runs import JointRun

import meshwise as mw
from meshwise.inter.compose import cheapest_states, compose, entries
from meshwise.inter.conditioned import (
    ConditionedLayer,
    LayerNetwork,
    MemoryPrice,
    layer_network,
)
from meshwise.intra.options import IntraOptions
from meshwise.intra.problem import row_weight
from meshwise.intra.solve import solve
from meshwise.models.named import model_config
from meshwise.models.steps import model_step
from meshwise.pipeline_planning import layers_of
from meshwise.trace.step import StepSignature

SIGNATURE = StepSignature(batch_argnums=(1,), batch_dims=0, donate_argnums="auto")
IN_FLIGHT = 2.0
# Prices of what the free plan holds, in steps.
PRICES = (0.0, *(0.05 * 2**k for k in range(10)))


def networks(name: str, rows: int, b: int, shape: Any, **changes: Any) -> list[LayerNetwork]:
    """The layers of a model on a mesh."""
    step, state, batch = model_step(model_config(name, **changes), rows).abstract
    layers = layers_of(step, (state, batch), {}, SIGNATURE, 3)[0]
    mesh = mw.Cluster.virtual("1x p3.16xlarge").mesh(shape)
    known = {
        c: layer_network(layers.graph(c, c, b), mesh, IntraOptions()) for c in set(layers.classes)
    }
    return [known[c] for c in layers.classes]


def composed(layers: list[LayerNetwork], price: float, *, exact: bool) -> tuple[float, float]:
    """Seconds and bytes of the cheapest run at a price, in seconds a byte."""
    cost = MemoryPrice(seconds_per_byte=price, in_flight=IN_FLIGHT)
    known: dict[int, ConditionedLayer] = {}
    for layer in layers:
        if id(layer) not in known:
            known[id(layer)] = ConditionedLayer(layer, cost, exact=exact)
    run = [known[id(layer)] for layer in layers]
    compose(run)
    states = cheapest_states(run, 0, len(run) - 1)
    plans = entries(run, 0, states)
    num_bytes = sum(
        plan.memory.resident_bytes + IN_FLIGHT * plan.memory.microbatch_bytes for plan in plans
    )
    return sum(plan.loop_s + plan.once_s for plan in plans), num_bytes


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("gpt-tiny", (4,)),
        ("gpt-tiny", (2, 2)),
        *(
            pytest.param(name, shape, marks=pytest.mark.slow)
            for name in ("gpt-tiny", "bert-tiny", "moe-tiny", "u-transformer-tiny", "llama-tiny")
            for shape in ((2,), (8,), (2, 4))
        ),
    ],
)
def test_composed_costs_are_those_of_all_decisions_at_once(name: str, shape: Any) -> None:
    layers = networks(name, 16, 2, shape)
    direct = solve(JointRun(layers).problem())
    assert direct.status == "optimal"
    assert composed(layers, 0.0, exact=True)[0] == pytest.approx(direct.cost, rel=1e-6)


def gaps(layers: list[LayerNetwork], shares: tuple[float, ...]) -> list[float]:
    """How far the cheapest plan that fits is above the direct one, for limits between the least."""
    joint = JointRun(layers, IN_FLIGHT)
    free = solve(joint.problem())
    most = row_weight(joint.problem(0.0).rows[0], free.choice)
    least = solve(joint.least_bytes()).cost
    plans = [composed(layers, p * free.cost / most, exact=False) for p in PRICES]
    found: list[float] = []
    for share in shares:
        limit = least + share * (most - least)
        direct = solve(joint.problem(limit), time_limit_s=30)
        fitting = [seconds for seconds, num_bytes in plans if num_bytes <= limit]
        found.append(min(fitting, default=float("inf")) / direct.cost - 1)
    return found


def test_with_a_limit_composed_costs_are_never_below() -> None:
    found = gaps(networks("gpt-tiny", 16, 2, (2,)), (1.0, 0.999, 0.5))
    assert found[0] == pytest.approx(0.0, abs=1e-6)
    assert all(gap >= -1e-6 for gap in found)


@pytest.mark.slow
def test_with_a_limit_layers_of_real_size_are_about_one_percent_above() -> None:
    layers = networks("gpt-1.3b", 32, 8, (2, 2), num_layers=3, dtype="float16")
    found = gaps(layers, (0.999, 0.9, 0.75, 0.5, 0.25))
    assert all(-1e-6 <= gap <= 0.01 for gap in found[:-1]), found
    # Near the least that any plan holds a price tells less apart: 1.1 % measured.
    assert -1e-6 <= found[-1] <= 0.02
