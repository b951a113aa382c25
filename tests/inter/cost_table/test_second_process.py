"""What another process computes is what this one would, and nothing is left of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import meshwise as mw
from inter.layer_cost.test_run_costs import layers_of_perceptron
from meshwise.assignment.solver_time import SolverTime
from meshwise.errors import TraceError
from meshwise.inter.cost_table import second_process
from meshwise.inter.cost_table.second_process import SecondProcess, second_process_of
from meshwise.inter.cost_table.variant import BoundsKey, Variant
from meshwise.inter.cost_table.variant_costs import VariantCosts
from meshwise.inter.layer_cost import layer_network
from meshwise.inter.layer_cost.footprint import footprint
from meshwise.inter.layer_cost.joint_run import JointRun
from meshwise.inter.layer_cost.run_within_memory import run_within_memory
from meshwise.inter.layer_cost.state_costs import BytePrice
from meshwise.intra.options import IntraOptions

MESH = mw.Cluster.virtual("1x p3.8xlarge").mesh((2,))
ASKS = [BoundsKey(MESH, remat, count) for count in (2, 4) for remat in ("none", "full")]


@pytest.fixture(scope="module")
def layers() -> Any:
    found = layers_of_perceptron(2)
    # One layer for each process.
    assert len(set(found.classes)) == 2
    return found


@pytest.fixture(autouse=True)
def no_second_process() -> None:
    """Here there is one."""


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(second_process, "_WORTH", 2)


def _same(a: Any, b: Any) -> bool:
    return all(np.array_equal(getattr(a, n), getattr(b, n)) for n in a.__slots__)


def _noted(costs: VariantCosts, monkeypatch: pytest.MonkeyPatch, name: str) -> list[int]:
    """The layers that a method of this process is called for."""
    found: list[int] = []
    method = getattr(costs, name)

    def note(first: Any, *rest: Any) -> Any:
        found.append(first)
        return method(first, *rest)

    monkeypatch.setattr(costs, name, note)
    return found


def test_the_same_bounds(layers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    alone, costs = (VariantCosts(layers, IntraOptions()) for _ in range(2))
    here = _noted(costs, monkeypatch, "layer_bounds")
    with second_process_of(costs) as beside:
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


def test_the_same_plans(layers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    alone, costs = (VariantCosts(layers, IntraOptions()) for _ in range(2))
    here: list[int] = []

    def counted(*args: Any) -> Any:
        here.append(1)
        return footprint(*args)

    monkeypatch.setattr(layer_network, "footprint", counted)
    way = Variant(mesh=MESH, remat="none", price=BytePrice())
    with second_process_of(costs) as beside:
        beside.bound(ASKS, lambda _: None)
        found = costs.runs(way, 2)
    num_here = len(here)
    wanted = alone.runs(way, 2)
    assert _same(found, wanted)
    assert 0 < num_here < len(here) - num_here


PRICED = [
    Variant(mesh=MESH, remat=remat, price=BytePrice(seconds_per_byte=1e-12))
    for remat in ("none", "full")
]


def _asked(layers: Any) -> list[tuple[Variant, Any]]:
    count = len(layers.classes)
    return [(variant, np.ones((count, count), np.bool_)) for variant in PRICED]


def test_the_same_runs(layers: Any) -> None:
    alone, costs = (VariantCosts(layers, IntraOptions()) for _ in range(2))
    with second_process_of(costs) as beside:
        beside.runs(_asked(layers), 2)
        assert beside.process is not None
    # One is composed here; of the other all is known that it follows from.
    here = [variant for variant in PRICED if costs.has_runs(variant, 2)]
    assert here == PRICED[:1]
    for variant in PRICED:
        record = next(iter(costs.known(variant, 2).values()))
        (price,) = record.prices.values()
        assert price.raised
        assert record.plans
        assert _same(costs.runs(variant, 2), alone.runs(variant, 2))


def test_runs_that_records_know_start_no_process(layers: Any) -> None:
    costs = VariantCosts(layers, IntraOptions())
    for variant in PRICED:
        for layer in costs.layers(variant, 2) or ():
            layer.sharpen(0, 0)
    with second_process_of(costs) as beside:
        beside.runs(_asked(layers), 2)
        assert beside.process is None


def test_a_process_that_ends_in_runs_is_done_without(
    layers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, costs = (VariantCosts(layers, IntraOptions()) for _ in range(2))
    ask = SecondProcess._ask_runs

    def ask_and_kill(self: SecondProcess, *args: Any) -> None:
        ask(self, *args)
        assert self.process is not None
        self.process.kill()

    monkeypatch.setattr(SecondProcess, "_ask_runs", ask_and_kill)
    with second_process_of(costs) as beside:
        beside.runs(_asked(layers), 2)
        assert beside.process is None
    for variant in PRICED:
        assert _same(costs.runs(variant, 2), alone.runs(variant, 2))


def test_what_a_run_needs_is_found_out_ahead(layers: Any) -> None:
    alone, costs = (VariantCosts(layers, IntraOptions()) for _ in range(2))
    last = len(layers.classes) - 1
    ours, theirs = (found.networks(PRICED[0], 2, 0, last) for found in (alone, costs))
    assert ours is not None
    assert theirs is not None
    with second_process_of(costs) as beside:
        beside.look_ahead(theirs, 1.0, 1e12)
        process = beside.process
        assert process is not None
        beside.learn_run(theirs, 2.0)
        assert not any(layer.record.prices for layer in theirs)
        beside.learn_run(theirs, 1.0)
        assert all(layer.record.prices for layer in theirs)
        beside.look_ahead(theirs, 1.0, 1e12)
        size = sum(layer.record.size() for layer in theirs)
    same, found = (
        run_within_memory(JointRun(some, 1.0), time=SolverTime(), seed=0).cheapest(1e12)
        for some in (ours, theirs)
    )
    assert found == same
    # Nothing more was to be found out.
    assert sum(layer.record.size() for layer in theirs) == size


def test_few_bounds_start_no_process(layers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(second_process, "_WORTH", len(ASKS) + 1)
    costs = VariantCosts(layers, IntraOptions())
    with second_process_of(costs) as beside:
        beside.bound(ASKS, lambda _: None)
        assert beside.process is None
    assert not any(costs.has_bounds(*key) for key in ASKS)


def test_what_is_known_is_not_asked_again(layers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    alone, costs = (VariantCosts(layers, IntraOptions()) for _ in range(2))
    with second_process_of(costs) as beside:
        beside.bound(ASKS, lambda _: None)
        here = _noted(costs, monkeypatch, "layer_bounds")
        other = BoundsKey(MESH, "none", 1)
        beside.bound([*ASKS, other], lambda _: None)
    assert len(here) == 1
    assert _same(costs.bounds(*other), alone.bounds(*other))


def test_a_process_that_ends_is_done_without(layers: Any) -> None:
    alone, costs = (VariantCosts(layers, IntraOptions()) for _ in range(2))

    def kill(_: str) -> None:
        if beside.process is not None:
            beside.process.kill()
            beside.process.wait()

    with second_process_of(costs) as beside:
        beside.bound(ASKS, kill)
        assert beside.process is None
        beside.bound([BoundsKey(MESH, "none", 1), BoundsKey(MESH, "full", 1)], lambda _: None)
        assert beside.process is None
    for key in ASKS:
        assert _same(costs.bounds(*key), alone.bounds(*key))


def test_a_step_that_does_not_separate_leaves_other_answers(layers: Any) -> None:
    alone, costs = (VariantCosts(layers, IntraOptions()) for _ in range(2))
    graph = costs.graph

    def refuse(c: int, remat: Any, num_microbatches: int) -> Any:
        if num_microbatches == 8:
            raise TraceError("it does not separate")
        return graph(c, remat, num_microbatches)

    costs.graph = refuse  # type: ignore[method-assign]
    with second_process_of(costs) as beside:
        # Asked before the one that is refused: its answer is not taken for a later one.
        with pytest.raises(TraceError):
            beside.bound([ASKS[0], BoundsKey(MESH, "none", 8)], lambda _: None)
        beside.bound(ASKS, lambda _: None)
        assert beside.process is not None
        for key in ASKS:
            assert _same(costs.bounds(*key), alone.bounds(*key))


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
    with second_process_of(costs) as beside:
        beside.bound(ASKS, lambda _: None)
        assert beside.process is None
        assert not any(costs.has_bounds(*ask) for ask in ASKS)
    for ask in ASKS:
        assert _same(costs.bounds(*ask), alone.bounds(*ask))


def test_blocks_inside_of_one_share_its_process(layers: Any) -> None:
    costs = VariantCosts(layers, IntraOptions())
    with second_process_of(costs) as outer:
        with second_process_of(costs) as inner:
            inner.bound(ASKS, lambda _: None)
        process = outer.process
        assert inner is outer
        assert process is not None
        assert process.poll() is None
    assert process.poll() is not None
    assert costs.beside is None


def test_an_answer_that_nobody_takes_ends_the_process(layers: Any) -> None:
    costs = VariantCosts(layers, IntraOptions())
    run = costs.networks(PRICED[0], 2, 0, len(layers.classes) - 1)
    assert run is not None
    with second_process_of(costs) as outer:
        with second_process_of(costs) as inner:
            inner.look_ahead(run, 1.0, 1e12)
            assert inner.process is not None
        assert outer.process is None
        # It begins anew where it is needed.
        outer.bound(ASKS, lambda _: None)
        assert outer.process is not None
