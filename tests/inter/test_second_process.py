"""Bounds from another process are those of this one, and nothing is left of it."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest

import meshwise as mw
from inter.test_compose import layers_of_model
from meshwise.inter import second_process
from meshwise.inter.conditioned import MemoryPrice
from meshwise.inter.second_process import Ask, AskPlan, AskRuns, SecondProcess
from meshwise.inter.variant import Variant
from meshwise.inter.variants import VariantCosts
from meshwise.intra.options import IntraOptions

MESH = mw.Cluster.virtual("1x p3.8xlarge").mesh((2,))
ASKS = [Ask(MESH, remat, count) for count in (2, 4) for remat in ("none", "full")]


@pytest.fixture(scope="module")
def layers() -> Any:
    return layers_of_model("gpt-tiny", 8, 2, num_layers=2)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(second_process, "_WORTH", 2)


def _same(a: Any, b: Any) -> bool:
    return all(np.array_equal(getattr(a, n), getattr(b, n)) for n in a.__slots__)


def test_the_same_bounds(layers: Any) -> None:
    alone, costs = (VariantCosts(layers, IntraOptions()) for _ in range(2))
    learned: list[Ask] = []
    learn = costs.learn

    def note(*args: Any) -> None:
        learned.append(Ask(*args[:3]))
        learn(*args)

    costs.learn = note  # type: ignore[method-assign]
    with SecondProcess(costs) as beside:
        beside.bound(ASKS, lambda _: None)
        process = beside.process
    assert learned
    assert all(costs.has_bounds(*ask) for ask in ASKS)
    for ask in ASKS:
        assert _same(costs.bounds(*ask), alone.bounds(*ask))
    assert process is not None
    assert process.returncode is not None


def test_the_same_plans(layers: Any) -> None:
    alone, costs = (VariantCosts(layers, IntraOptions()) for _ in range(2))
    every = np.ones((2, 2), np.bool_)
    ways = [
        Variant(mesh=MESH, remat=remat, price=MemoryPrice(seconds_per_byte=price))
        for remat in ("none", "full")
        for price in (0.0, 1e-9)
    ]
    theirs: list[tuple[Variant, int]] = []
    learn = costs.learn_runs

    def note(*args: Any) -> None:
        theirs.append(args[:2])
        learn(*args)

    costs.learn_runs = note  # type: ignore[method-assign]
    with SecondProcess(costs) as beside:
        beside.bound(ASKS, lambda _: None)
        beside.plan([AskRuns(way, 4, every) for way in ways])
        assert theirs
        assert all(costs.has_runs(way, 4) for way in ways)
        beside.fetch([AskPlan(way, 4, 0, 1) for way in ways])
    for way in ways:
        assert _same(costs.runs(way, 4), alone.runs(way, 4))
        assert costs.run_plan(way, 4, 0, 1) == alone.run_plan(way, 4, 0, 1)
        # What was not sent is planned here, though the costs came from there.
        assert costs.run_plan(way, 4, 1, 1) == alone.run_plan(way, 4, 1, 1)


def test_runs_of_an_earlier_process_stay_known(layers: Any) -> None:
    way = Variant(mesh=MESH, remat="none", price=MemoryPrice())
    costs = VariantCosts(layers, IntraOptions())
    some = [np.zeros((2, 2), np.bool_) for _ in range(2)]
    some[0][0, 0] = some[1][1, 1] = True
    for wanted in some:
        # Each search begins a process, which knows nothing of the one before.
        found = VariantCosts(layers, IntraOptions()).runs(way, 2, wanted)
        costs.learn_runs(way, 2, wanted, found)
    runs = costs.runs(way, 2, some[0] | some[1])
    assert runs is not None
    assert np.isfinite(runs.cost_s[some[0] | some[1]]).all()


def test_plans_of_a_process_that_ended_are_made_here(layers: Any) -> None:
    costs = VariantCosts(layers, IntraOptions())
    every = np.ones((2, 2), np.bool_)
    ways = [Variant(mesh=MESH, remat=r, price=MemoryPrice()) for r in ("none", "full")]
    with SecondProcess(costs) as beside:
        beside.bound(ASKS, lambda _: None)
        beside.plan([AskRuns(way, 4, every) for way in ways])
        assert beside.process is not None
        os.kill(beside.process.pid, signal.SIGKILL)
        beside.process.wait()
        beside.fetch([AskPlan(way, 4, 0, 1) for way in ways])
        beside.plan([AskRuns(way, 2, every) for way in ways])
    for way in ways:
        plans = costs.run_plan(way, 4, 0, 1).entries
        runs = costs.runs(way, 4)
        assert runs is not None
        assert sum(p.cost_s for p in plans) == pytest.approx(runs.cost_s[0, 1])


def test_a_process_that_ends_is_done_without(layers: Any) -> None:
    costs = VariantCosts(layers, IntraOptions())

    def kill(_: str) -> None:
        if beside.process is not None:
            os.kill(beside.process.pid, signal.SIGKILL)

    with SecondProcess(costs) as beside:
        beside.bound(ASKS, kill)
        assert beside.process is None
        beside.bound(ASKS, lambda _: None)
        assert beside.process is None
    assert costs.bounds(*ASKS[-1]) is not None


def test_what_cannot_be_sent_is_computed_here(layers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # As rules of a user may be.
    costs = VariantCosts(layers, IntraOptions())
    monkeypatch.setattr(costs, "graph", lambda *_: lambda: None)
    monkeypatch.setattr(costs, "bounds", lambda *_: None)
    with SecondProcess(costs) as beside:
        beside.bound(ASKS, lambda _: None)
        assert beside.process is None
