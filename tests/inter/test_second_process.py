"""What another process bounds and plans is what this one would, and nothing is left of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import meshwise as mw
from inter.test_compose import layers_of_model
from meshwise.errors import TraceError
from meshwise.inter.cost_table import layer_process
from meshwise.inter.cost_table.layer_process import Ask, SecondProcess
from meshwise.inter.cost_table.variant import LayerKey, Variant
from meshwise.inter.cost_table.variant_costs import VariantCosts
from meshwise.inter.layer_cost.state_costs import BytePrice
from meshwise.intra.options import IntraOptions

MESH = mw.Cluster.virtual("1x p3.8xlarge").mesh((2,))
ASKS = [Ask(MESH, remat, count) for count in (2, 4) for remat in ("none", "full")]
EVERY = np.ones((2, 2), np.bool_)
WAYS = [
    Variant(mesh=MESH, remat=remat, price=BytePrice(seconds_per_byte=price))
    for remat in ("none", "full")
    for price in (0.0, 1e-9)
]


@pytest.fixture(scope="module")
def layers() -> Any:
    found = layers_of_model("gpt-tiny", 8, 2, num_layers=2)
    # One layer for each process.
    assert len(set(found.classes)) == 2
    return found


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_process, "_WORTH", 2)


def _same(a: Any, b: Any) -> bool:
    return all(np.array_equal(getattr(a, n), getattr(b, n)) for n in a.__slots__)


def _noted(costs: VariantCosts, monkeypatch: pytest.MonkeyPatch, name: str) -> list[int]:
    """The layers that a method of this process is called for."""
    found: list[int] = []
    method = getattr(costs, name)

    def note(first: Any, *rest: Any) -> Any:
        found.append(first.layer if isinstance(first, LayerKey) else first)
        return method(first, *rest)

    monkeypatch.setattr(costs, name, note)
    return found


def test_the_same_bounds(layers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    alone, costs = (VariantCosts(layers, IntraOptions()) for _ in range(2))
    here = _noted(costs, monkeypatch, "layer_bounds")
    with SecondProcess(costs) as beside:
        beside.bound(ASKS, lambda _: None)
        process = beside.process
    assert len(here) == len(ASKS)
    assert len(set(here)) == 1
    for ask in ASKS:
        assert costs.has_bounds(*ask)
        assert _same(costs.bounds(*ask), alone.bounds(*ask))
    assert len(here) == len(ASKS)
    assert process is not None
    assert process.returncode is not None


@pytest.mark.parametrize("ahead", [0, 2, len(WAYS)])
def test_the_same_plans(layers: Any, monkeypatch: pytest.MonkeyPatch, ahead: int) -> None:
    alone, costs = (VariantCosts(layers, IntraOptions()) for _ in range(2))
    here = _noted(costs, monkeypatch, "layer")
    with SecondProcess(costs) as beside:
        beside.bound(ASKS, lambda _: None)
        for way in WAYS[:ahead]:
            costs.begin_layers(way, 4)
            # What was asked is not asked again.
            costs.begin_layers(way, 4)
        for way in WAYS:
            assert _same(costs.runs(way, 4, EVERY), alone.runs(way, 4, EVERY))
            assert costs.run_plan(way, 4, 0, 1) == alone.run_plan(way, 4, 0, 1)
        assert len(here) == len(WAYS)
    for way in WAYS:
        assert costs.run_plan(way, 4, 0, 1) == alone.run_plan(way, 4, 0, 1)
        # What was not asked of it is planned here.
        assert costs.run_plan(way, 4, 1, 1) == alone.run_plan(way, 4, 1, 1)
    assert set(here) == set(layers.classes)


def test_what_was_begun_is_lost_with_the_process(layers: Any) -> None:
    alone, costs = (VariantCosts(layers, IntraOptions()) for _ in range(2))
    with SecondProcess(costs) as beside:
        beside.bound(ASKS, lambda _: None)
        other = Ask(MESH, "none", 1)
        costs.begin_bounds(*other)
        costs.begin_layers(WAYS[0], 4)
        assert not costs.has_bounds(*other)
        assert beside.process is not None
        beside.process.kill()
    assert _same(costs.bounds(*other), alone.bounds(*other))
    assert _same(costs.runs(WAYS[0], 4, EVERY), alone.runs(WAYS[0], 4, EVERY))


@pytest.mark.parametrize("when", ["bounds", "runs", "plan"])
def test_a_process_that_ends_is_done_without(layers: Any, when: str) -> None:
    alone, costs = (VariantCosts(layers, IntraOptions()) for _ in range(2))
    way = WAYS[1]

    def kill(_: str) -> None:
        if beside.process is not None:
            beside.process.kill()
            beside.process.wait()

    with SecondProcess(costs) as beside:
        beside.bound(ASKS, kill if when == "bounds" else lambda _: None)
        if when == "runs":
            kill("")
        runs = costs.runs(way, 4)
        if when == "plan":
            kill("")
        plan = costs.run_plan(way, 4, 0, 1)
        assert beside.process is None
        beside.bound([Ask(MESH, "none", 1), Ask(MESH, "full", 1)], lambda _: None)
        assert beside.process is None
    assert _same(runs, alone.runs(way, 4))
    assert plan == alone.run_plan(way, 4, 0, 1)
    for ask in ASKS:
        assert _same(costs.bounds(*ask), alone.bounds(*ask))


def test_a_step_that_does_not_separate_leaves_other_answers(layers: Any) -> None:
    alone, costs = (VariantCosts(layers, IntraOptions()) for _ in range(2))
    graph = costs.graph

    def refuse(c: int, remat: Any, num_microbatches: int) -> Any:
        if num_microbatches == 8:
            raise TraceError("it does not separate")
        return graph(c, remat, num_microbatches)

    costs.graph = refuse  # type: ignore[method-assign]
    with SecondProcess(costs) as beside:
        # Asked before the one that is refused, answered after it.
        with pytest.raises(TraceError):
            beside.bound([ASKS[0], Ask(MESH, "none", 8)], lambda _: None)
        beside.bound(ASKS, lambda _: None)
        assert beside.process is not None
        for ask in ASKS:
            assert _same(costs.bounds(*ask), alone.bounds(*ask))


def test_runs_that_are_asked_for_in_turn_stay_known(layers: Any) -> None:
    costs = VariantCosts(layers, IntraOptions())
    some = [np.zeros((2, 2), np.bool_) for _ in range(2)]
    some[0][0, 0] = some[1][1, 1] = True
    for wanted in some:
        # Each search begins a process, which knows nothing of the one before.
        with SecondProcess(costs) as beside:
            beside.bound([Ask(MESH, remat, 2) for remat in ("none", "full")], lambda _: None)
            costs.runs(WAYS[0], 2, wanted)
    runs = costs.runs(WAYS[0], 2, some[0] | some[1])
    assert runs is not None
    assert np.isfinite(runs.cost_s[some[0] | some[1]]).all()


class Unsendable(dict[int, int]):
    """As rules of a user may be."""

    def __reduce__(self) -> Any:
        raise TypeError("it cannot be pickled")


def test_what_cannot_be_sent_is_computed_here(layers: Any) -> None:
    alone, costs = (VariantCosts(layers, IntraOptions()) for _ in range(2))
    graph = costs.graph

    def unsendable(*key: Any) -> Any:
        piece = graph(*key)
        return replace(piece, batch_dims=Unsendable(piece.batch_dims))

    costs.graph = unsendable  # type: ignore[method-assign]
    with SecondProcess(costs) as beside:
        beside.bound(ASKS, lambda _: None)
        assert beside.process is None
        assert not any(costs.has_bounds(*ask) for ask in ASKS)
    for ask in ASKS:
        assert _same(costs.bounds(*ask), alone.bounds(*ask))
