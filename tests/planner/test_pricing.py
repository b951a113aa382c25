"""Prices of other choices are differences of real plans."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import meshwise as mw
from meshwise.cluster.cpu import cpu_cluster
from meshwise.errors import InfeasibleError, PlanError
from meshwise.graph.layout import split_layouts
from meshwise.graph.loops import enumerate_strategies
from meshwise.plan.counts.contents import dense_sites
from meshwise.planner.one_mesh import Forced, plan_on
from meshwise.spmd.program import partition_spec
from meshwise.units import seconds_text

CLUSTER = cpu_cluster(4)
GRID = mw.IntraOp(mesh_shape=(2, 2))
WIDTH, ROWS = 64, 256


def step(state: Any, batch: Any) -> Any:
    def loss(state: Any) -> Any:
        h = batch
        for layer in state["layers"]:
            h = jnp.tanh(h @ layer["kernel"])
        return jnp.mean((h @ state["head"]) ** 2)

    value, grads = mw.value_and_grad(loss)(state)
    return jax.tree.map(lambda p, g: p - 0.1 * g, state, grads), value


def arguments() -> tuple[Any, Any]:
    kernel = jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)
    head = jax.ShapeDtypeStruct((WIDTH, 4 * WIDTH), jnp.float32)
    batch = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32)
    return {"layers": [{"kernel": kernel}, {"kernel": kernel}], "head": head}, batch


def parallel(**options: Any) -> Any:
    return mw.parallelize(step, **({"method": GRID, "cluster": CLUSTER} | options))


@pytest.fixture(scope="module")
def priced() -> mw.Plan:
    return parallel().priced(*arguments(), rivals=20)


def pinned_plan(name: str, layout: Any) -> mw.Plan:
    spec = partition_spec(layout, ("x", "y"))
    return parallel(pins={name: spec}).plan(*arguments())


def test_the_price_of_a_rival_is_the_difference_of_two_plans(priced: mw.Plan) -> None:
    plain = parallel().plan(*arguments())
    of_arguments = [rival for rival in priced.rivals if not rival.chosen.operands]
    # Equal layers may lie in different ways that cost the same.
    names = [re.sub(r"layers/\d", "layers/*", rival.what) for rival in of_arguments]
    assert set(names) == {"0/layers/*/kernel", "0/head", "1"}
    for rival in of_arguments:
        assert rival.rival is not None
        assert rival.rival != rival.chosen
        forced = pinned_plan(rival.what, rival.rival.results[0])
        assert rival.step_time_s == forced.step_time_s
        assert rival.step_time_s >= plain.step_time_s
    counts = zip(names, of_arguments, strict=True)
    assert sum(rival.count for name, rival in counts if name == "0/layers/*/kernel") == 2


def test_no_other_layout_is_cheaper_than_the_rival(priced: mw.Plan) -> None:
    (rival,) = [rival for rival in priced.rivals if rival.what == "0/head"]
    times = {
        layout: pinned_plan("0/head", layout).step_time_s
        for layout in split_layouts((WIDTH, 4 * WIDTH), (2, 2))
    }
    assert rival.status == priced.status == "optimal"
    assert times.pop(rival.chosen.results[0]) == pytest.approx(priced.step_time_s, rel=1e-9)
    assert rival.step_time_s == pytest.approx(min(times.values()), rel=1e-9)


def test_no_other_strategy_is_cheaper_than_the_rival_of_an_operator(priced: mw.Plan) -> None:
    whole = parallel()
    planned = whole._plan(*whole._taken_apart(arguments(), {}))
    traced, plan = planned.traced, planned.plan
    products = [rival for rival in priced.rivals if rival.chosen.operands]
    assert len(products) == len(plan.stages[0].dense)
    rival = next(r for r in products if r.count == 1)
    (site,) = next(
        sites
        for sites, record in zip(
            dense_sites(traced.graph, plan.decision), plan.stages[0].dense, strict=True
        )
        if record.where == rival.what and record.operands == rival.chosen.operands
    )
    memory = CLUSTER.device.memory_bytes
    times: list[float] = []
    for strategy in enumerate_strategies(site.operator.rule, (2, 2)):
        if strategy != site.decision.strategy:
            forced = Forced(strategies={site.path: frozenset([strategy])})
            times.append(plan_on(traced, whole._request, plan.mesh, memory, forced).step_time_s)
    assert len(times) > 4
    assert rival.step_time_s == pytest.approx(min(times), rel=1e-9)


def test_the_price_of_memory_is_that_of_planning_again() -> None:
    free = parallel().plan(*arguments())
    limit = free.peak_bytes - 1
    while True:
        try:
            tight = parallel(memory_bytes=limit).plan(*arguments())
        except InfeasibleError:
            pytest.fail("no limit costs anything: the test needs another problem")
        if tight.step_time_s > free.step_time_s * 1.01:
            break
        limit = tight.peak_bytes - 1
    more = free.peak_bytes - limit
    priced = parallel(memory_bytes=limit).priced(*arguments(), rivals=0, more_bytes=more)
    assert priced.rivals == ()
    price = priced.memory_price
    assert price is not None
    again = parallel(memory_bytes=limit + more).plan(*arguments())
    assert price.step_time_s == again.step_time_s < priced.step_time_s
    saved = seconds_text(priced.step_time_s - again.step_time_s)
    assert f"more per device would save {saved} a step" in priced.explain()


def test_enough_memory_saves_nothing(priced: mw.Plan) -> None:
    assert priced.memory_price is not None
    assert priced.memory_price.step_time_s == priced.step_time_s
    assert "1 GiB more per device would save nothing\n" in priced.explain()


def test_prices_read_back_and_are_reproducible(priced: mw.Plan) -> None:
    text = priced.to_json()
    assert mw.Plan.from_json(text) == priced
    assert mw.Plan.from_json(text).explain() == priced.explain()
    assert parallel().priced(*arguments(), rivals=20).to_json() == text


def test_pins_bound_the_rivals() -> None:
    pins = {"0/layers/*/kernel": P("x", None), "1": mw.Pin(forbid="x")}
    found = parallel(pins=pins).priced(*arguments(), rivals=20, more_bytes=None)
    assert found.memory_price is None
    names = [rival.what for rival in found.rivals]
    assert "0/layers/*/kernel" not in names
    (batch,) = [rival for rival in found.rivals if rival.what == "1"]
    assert batch.rival is not None
    assert all(0 not in axes for axes in batch.rival.results[0].dims)


def test_the_number_of_questions_is_bounded_and_progress_is_told() -> None:
    told: list[tuple[int, int, str]] = []
    text = parallel().explain(*arguments(), rivals=2, progress=lambda *a: told.append(a))
    assert [(done, total) for done, total, _ in told] == [(0, 3), (1, 3), (2, 3)]
    assert told[0][2].startswith("dot_general at test_pricing.py")
    assert told[2][2] == "memory"
    assert "What forcing another choice costs, by planning again" in text


def test_a_replayed_plan_has_no_prices() -> None:
    plan = parallel().plan(*arguments())
    with pytest.raises(PlanError, match=r"a replayed plan has no prices: .*method=mw\.IntraOp"):
        parallel(method=mw.Replay(plan)).priced(*arguments())


def test_seconds_of_a_step_add_up(priced: mw.Plan) -> None:
    (stage,) = priced.stages
    moves = [*(a.communication for a in stage.arguments), *(d.communication for d in stage.dense)]
    attributed = sum(seconds for pairs in moves for _, seconds in pairs)
    dense = sum(max(d.compute_s, d.memory_s) for d in stage.dense)
    assert 0 < attributed + dense <= priced.step_time_s
    assert np.isfinite(attributed)
