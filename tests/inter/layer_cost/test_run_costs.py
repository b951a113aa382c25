"""Costs of runs of layers against enumeration of states, and against planning a run as a whole."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
from evaluation.baselines.built_stages import build_stages

import meshwise as mw
from doubles.few import few
from doubles.perceptron import perceptron
from meshwise.assignment.bounds.conditional import ConditionalBounds
from meshwise.inter.cost_table.variant import Variant
from meshwise.inter.cost_table.variant_costs import VariantCosts
from meshwise.inter.layer_cost.layer_network import layer_network
from meshwise.inter.layer_cost.looking_threads import LookingThreads
from meshwise.inter.layer_cost.run_costs import RunCosts, cheapest_states, compose, entries
from meshwise.inter.layer_cost.state_costs import BytePrice, ConditionedLayer
from meshwise.inter.search.lazy_table import LazyTable
from meshwise.inter.search.search_space import SearchOptions, submeshes_of, variants_of
from meshwise.inter.stages.stage_problem import StageProblem, StageSpan
from meshwise.intra.options import IntraOptions
from meshwise.intra.plan_graph import plan_graph
from meshwise.intra.ties import tied_problem
from meshwise.models.named import model_config
from meshwise.models.steps import model_step
from meshwise.planner.pipeline import layers_of
from meshwise.trace.layers.layering import Layering
from meshwise.trace.step import StepSignature

pytestmark = pytest.mark.usefixtures("no_buckets")

SIGNATURE = StepSignature(batch_argnums=(1,), batch_dims=0, donate_argnums="auto")
B = 2


def layers_of_model(name: str, rows: int, count: int, **changes: Any) -> Layering:
    step, state, batch = model_step(model_config(name, **changes), rows).abstract
    return layers_of(step, (state, batch), {}, SIGNATURE, count)[0]


def conditioned(
    layers: Layering, mesh: Any, price: float = 0.0, *, alone: bool = False, exact: bool = True
) -> list[ConditionedLayer]:
    """The layers; `alone` ones as one program each, without neighbours."""
    known: dict[int, ConditionedLayer] = {}
    for c in layers.classes:
        if c not in known:
            network = layer_network(layers.graph(c, c, B), mesh, IntraOptions())
            if alone:
                network = dataclasses.replace(
                    network,
                    arriving_s=np.zeros_like(network.arriving_s),
                    returning_s=np.zeros_like(network.returning_s),
                ).with_problem(
                    tied_problem(network.network, network.ties),
                    tuple(np.zeros_like(s) for s in network.again_s),
                )
            of_price = BytePrice(seconds_per_byte=price, in_flight=2.0)
            known[c] = ConditionedLayer(network, of_price, exact=exact)
    return [known[c] for c in layers.classes]


def layers_of_perceptron(count: int) -> Layering:
    """Layers of two products each."""
    step, state, batch = perceptron((256, 1024) * count + (256,), 512)
    return layers_of(step, (state, batch), {}, SIGNATURE, count)[0]


@pytest.fixture(scope="module")
def gpt() -> Layering:
    return layers_of_model("gpt-tiny", 8, 3, num_layers=3, dtype="float16")


@pytest.fixture(scope="module", params=["perceptron", pytest.param("gpt", marks=pytest.mark.slow)])
def model(request: pytest.FixtureRequest) -> Layering:
    """Three layers."""
    if request.param == "gpt":
        return request.getfixturevalue("gpt")
    return layers_of_perceptron(3)


def all_costs(layer: ConditionedLayer) -> np.ndarray:
    """Every entry solved."""
    shape = layer.bound_s.shape
    for a, b in itertools.product(*map(range, shape)):
        layer.entry(a, b)
    return layer.bound_s


@pytest.mark.parametrize("shape", few([(4,), (2, 2)], [(2, 2)]))
def test_composed_costs_are_those_of_the_cheapest_states(model: Layering, shape: Any) -> None:
    mesh = mw.Cluster.virtual("1x p3.8xlarge").mesh(shape)
    runs = compose(conditioned(model, mesh))
    layers = conditioned(model, mesh)
    matrices = [all_costs(layer) for layer in layers]
    for first in range(len(matrices)):
        total = matrices[first] + B * layers[first].layer.arriving_s[:, None]
        for last in range(first, len(matrices)):
            if last > first:
                total = (total[:, :, None] + matrices[last][None]).min(axis=1)
            whole = total + B * layers[last].layer.returning_s
            assert runs.cost_s[first, last] == pytest.approx(whole.min(), rel=1e-7)
    # Nothing comes to the whole model; what enters its middle is gathered, or lies in tiles.
    assert runs.gather_s[0, 2] == 0.0
    arriving_s = layers[1].layer.arriving_s
    assert arriving_s.min() == 0.0
    assert arriving_s.max() > 0.0
    assert (runs.gather_s[1, 1] <= arriving_s.max() + layers[1].layer.returning_s.max()).all()


def test_no_bound_is_above_the_cost(model: Layering) -> None:
    mesh = mw.Cluster.virtual("1x p3.8xlarge").mesh((4,))
    for layer in conditioned(model, mesh):
        levels = [layer.bound_s.copy()]
        while not layer.is_exact.all():
            for a, b in np.argwhere(~layer.is_exact):
                layer.sharpen(a, b)
            levels.append(layer.bound_s.copy())
        assert len(levels) <= 4
        exact = all_costs(layer)
        for rough, sharper in itertools.pairwise(levels):
            assert (rough <= sharper * (1 + 1e-12)).all()
            assert (rough <= exact * (1 + 1e-6)).all()
        assert (levels[-1] == exact).all()


def test_threads_see_what_one_sees(model: Layering) -> None:
    mesh = mw.Cluster.virtual("1x p3.8xlarge").mesh((4,))
    together, alone = (conditioned(model, mesh, exact=False) for _ in range(2))
    with LookingThreads() as threads:
        for _ in range(3):
            for one, other in zip(dict.fromkeys(together), dict.fromkeys(alone), strict=True):
                places = list(np.ndindex(one.bound_s.shape))
                threads.sharpen([(one, place) for place in places])
                for place in places:
                    other.sharpen(*place)
                for name in ("bound_s", "proved_s", "is_exact"):
                    assert np.array_equal(getattr(one, name), getattr(other, name))
    assert all(layer.is_exact.all() for layer in together)


@pytest.mark.parametrize("exact", [False, True])
def test_what_plans_cost_above_their_bounds_is_added_to_others_without_proofs(
    exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tight = ConditionalBounds.of_pair
    gap_s = 1e-4
    monkeypatch.setattr(ConditionalBounds, "of_pair", lambda *args: (tight(*args)[0] - gap_s, None))
    monkeypatch.setattr(ConditionalBounds, "of_all_pairs", lambda bounds: np.zeros(bounds._shape))
    mesh = mw.Cluster.virtual("1x p3.8xlarge").mesh((4,))
    piece = layers_of_perceptron(4).graph(1, 1, B)
    layer = ConditionedLayer(layer_network(piece, mesh, IntraOptions()), BytePrice(), exact=exact)
    places = list(np.ndindex(layer.bound_s.shape))[:6]
    for place in places:
        layer.sharpen(*place)
    raised_s = layer.bound_s.copy()
    for place in places[:5]:
        layer.sharpen(*place)
    last = places[5]
    added_s = layer.bound_s[last] - raised_s[last]
    assert added_s == pytest.approx(0.0 if exact else gap_s, rel=1e-3)
    # What is proved stays.
    assert layer.proved_s[last] == raised_s[last]


@pytest.fixture
def untied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal layers are planned freely, however large the problem."""
    monkeypatch.setattr("meshwise.intra.plan_graph._TIE_NODES", 10**9)


@pytest.mark.parametrize("shape", few([(4,), (2, 2)], [(2, 2)]))
@pytest.mark.usefixtures("untied")
def test_one_layer_costs_what_its_own_plan_costs(gpt: Layering, shape: Any) -> None:
    mesh = mw.Cluster.virtual("1x p3.8xlarge").mesh(shape)
    costs = compose(conditioned(gpt, mesh, alone=True)).cost_s
    for k in range(3):
        # The plan of the layer alone may lay out activation and cotangent differently.
        direct = plan_graph(gpt.graph(k, k, B).graph, mesh, IntraOptions())
        assert direct.status == "optimal"
        assert direct.objective_s <= costs[k, k] * (1 + 1e-7)
        assert costs[k, k] <= direct.objective_s * 1.03


@pytest.mark.parametrize("shape", [(4,), (2, 2)])
@pytest.mark.usefixtures("untied")
def test_a_run_costs_about_what_its_plan_as_a_whole_costs(model: Layering, shape: Any) -> None:
    # As a whole, clusters of operators reach over the cuts, which ties choices that are free
    # here, and sums may stay partial there.
    mesh = mw.Cluster.virtual("1x p3.8xlarge").mesh(shape)
    costs = compose(conditioned(model, mesh, alone=True)).cost_s
    direct = plan_graph(model.graph(0, 2, B).graph, mesh, IntraOptions())
    assert 0.9 * direct.objective_s <= costs[0, 2] <= 1.03 * direct.objective_s


def test_costs_are_seconds_and_bytes_at_their_price(model: Layering) -> None:
    mesh = mw.Cluster.virtual("1x p3.8xlarge").mesh((4,))
    price = 1e-9
    layers = conditioned(model, mesh, price)
    runs = compose(layers)
    for k, layer in enumerate(layers):
        plan = entries(layers, k, cheapest_states(layers, k, k))[0]
        held = plan.memory.resident_bytes + 2 * plan.memory.microbatch_bytes
        # What is made before the loop is held too, but is no sum of choices.
        assert plan.cost_s <= (plan.loop_s + plan.once_s + price * held) * (1 + 1e-9)
        assert plan.cost_s > plan.loop_s + plan.once_s
        assert layer.layer.piece.num_microbatches == B
    free = compose(conditioned(model, mesh))
    # The plan without a price may be the smallest already.
    assert runs.resident_bytes[0, 2] <= free.resident_bytes[0, 2]
    assert runs.loop_s[0, 2] + runs.once_s[0, 2] >= free.loop_s[0, 2] + free.once_s[0, 2] - 1e-12


@pytest.mark.parametrize("price", [0.0, 1e-9, 1e-5])
def test_held_bytes_are_those_of_the_plan(model: Layering, price: float) -> None:
    mesh = mw.Cluster.virtual("1x p3.8xlarge").mesh((4,))
    for layer in conditioned(model, mesh, price):
        for a, b in np.ndindex(layer.bound_s.shape):
            entry = layer.entry(a, b)
            if entry is None:
                continue
            choice, held = layer.choice(a, b), layer.layer.held

            def summed(pairs: Any, single: Any, choice: Any = choice) -> float:
                shared = sum(table[choice[u], choice[v]] for (u, v), table in pairs.items())
                return shared + sum(r[c] for r, c in zip(single, choice, strict=True))

            resident = summed(held.copies, held.resident)
            assert resident == pytest.approx(entry.memory.resident_bytes, rel=1e-3)
            passing = summed(held.kept_copies, held.microbatch)
            # Copies in other layouts included, which two passes share.
            assert passing == pytest.approx(entry.memory.microbatch_bytes, rel=1e-3)


def test_no_run_is_below_its_bound(model: Layering) -> None:
    mesh = mw.Cluster.virtual("1x p3.8xlarge").mesh((4,))
    costs = VariantCosts(model, IntraOptions())
    runs = costs.runs(Variant(mesh=mesh, remat="none", price=BytePrice()), 4)
    own = costs.bounds(mesh, "none", 4)
    assert runs is not None
    assert own is not None
    for count in (2, 4):
        bounds = costs.bounds(mesh, "none", count)
        assert bounds is not None
        some = np.isfinite(runs.cost_s)
        assert (bounds.resident_bytes[some] <= own.resident_bytes[some]).all()
        assert (np.isfinite(bounds.loop_s) == some).all()
        busy_s = runs.loop_s + 4 * runs.gather_s
        assert (bounds.loop_s[some] <= busy_s[some] * (1 + 1e-6)).all()
        assert (bounds.resident_bytes[some] <= runs.resident_bytes[some]).all()
    # Of the work itself a bound lacks little; less is known of which states are cheap.
    assert bounds.loop_s[0, 2] > 0.5 * busy_s[0, 2]
    assert (bounds.loop_s[some] > 0.25 * busy_s[some]).all()


def table_of(model: Layering, report: Any) -> LazyTable:
    cluster = mw.Cluster.virtual("1x p3.8xlarge")
    options = SearchOptions(batch_size=8, step_flop=1e9, prices=(1e-3,))
    kinds, submeshes = submeshes_of(cluster, every=False, memory_bytes=None)
    ways = [variants_of(kind, options, 1e-3) for kind in kinds]
    costs = VariantCosts(model, options.intra)
    return LazyTable(costs, submeshes, ways, 4, bounds_of=2, report=report)


def problem_of(table: LazyTable) -> StageProblem:
    return StageProblem(costs=table.costs(), num_devices=4, num_microbatches=4)


def planned(told: list[str]) -> set[str]:
    return {text for text in told if text.startswith("layers")}


@pytest.fixture(scope="module")
def whole(model: Layering) -> tuple[LazyTable, int]:
    """A table with everything planned, and how often layers were planned for it."""
    told: list[str] = []
    table = table_of(model, told.append)
    exists = np.isfinite(table.costs().microbatch_s)
    stages = [
        StageSpan(first_layer=i, last_layer=j, submesh=m, variant=v, first_device=0)
        for i, j, m, v in np.argwhere(exists).tolist()
    ]
    while table.plan(stages, 4, np.inf):
        pass
    return table, len(planned(told))


# Nothing is worth it but what the best stages use; or much is.
@pytest.mark.parametrize("at_most_s", [0.0, np.inf])
def test_a_table_of_bounds_finds_what_a_whole_table_finds(
    model: Layering, whole: tuple[LazyTable, int], at_most_s: float
) -> None:
    best = build_stages(problem_of(whole[0]))
    told: list[str] = []
    lazy = table_of(model, told.append)
    found = build_stages(problem_of(lazy))
    while lazy.plan(found.stages, 4, at_most_s):
        assert found.total_s <= best.total_s * (1 + 1e-9)
        found = build_stages(problem_of(lazy))
    assert found.total_s == pytest.approx(best.total_s, rel=1e-9)
    assert found.stages == best.stages
    assert 0 < len(planned(told)) < whole[1]


def test_no_stage_is_below_its_bound_of_less_work(
    model: Layering, whole: tuple[LazyTable, int]
) -> None:
    bounds = table_of(model, lambda _: None).costs()
    costs = whole[0].costs()
    exists = np.isfinite(costs.microbatch_s)
    assert exists.any(axis=(0, 1)).sum() > 4
    # What is gathered is part of the bound of time.
    assert (bounds.busy_s[exists] <= costs.busy_s[exists] * (1 + 1e-6)).all()
    for name in ("once_s", "resident_bytes", "microbatch_bytes", "temporary_bytes"):
        bound, known = bounds.columns()[name], costs.columns()[name]
        assert (bound[exists] <= known[exists] * (1 + 1e-6)).all(), name


def test_some_runs_cost_what_they_cost_among_all(model: Layering) -> None:
    mesh = mw.Cluster.virtual("1x p3.8xlarge").mesh((4,))
    wanted = np.zeros((3, 3), np.bool_)
    wanted[0, 1] = wanted[2, 2] = True
    some = compose(conditioned(model, mesh), wanted)
    every = compose(conditioned(model, mesh))
    assert (np.isfinite(some.cost_s) >= wanted).all()
    assert not np.isfinite(some.cost_s[0, 2])
    known = np.isfinite(some.cost_s)
    assert some.cost_s[known] == pytest.approx(every.cost_s[known], rel=1e-9)


def test_rematerialisation_holds_less_and_takes_longer(model: Layering) -> None:
    mesh = mw.Cluster.virtual("1x p3.8xlarge").mesh((4,))
    found = {}
    for remat in ("none", "full"):
        network = layer_network(model.graph(1, 1, B, remat), mesh, IntraOptions())
        layer = ConditionedLayer(network, BytePrice())
        state = int(np.argmin(np.diagonal(layer.bound_s)))
        entry = layer.entry(state, state)
        assert entry is not None
        found[remat] = entry
    assert found["full"].memory.microbatch_bytes < 0.5 * found["none"].memory.microbatch_bytes
    # Gradients may be summed over devices in each micro-batch or once: both times together count.
    seconds = {remat: entry.loop_s + entry.once_s for remat, entry in found.items()}
    assert seconds["full"] > seconds["none"]


@pytest.mark.slow
def test_a_model_with_skips_can_be_cut() -> None:
    layers = layers_of_model("u-transformer-tiny", 4, 4)
    mesh = mw.Cluster.virtual("1x p3.8xlarge").mesh((2,))
    costs = compose(conditioned(layers, mesh))
    assert np.isfinite(costs.cost_s[0, 3])
    assert np.isfinite(costs.loop_s[0]).all()


@pytest.mark.parametrize("value", [np.nan, -1.0])
def test_costs_that_are_no_costs_are_refused(value: float) -> None:
    nothing = np.zeros((2, 2))
    names = ("cost_s", "loop_s", "gather_s", "once_s")
    names += ("resident_bytes", "microbatch_bytes", "temporary_bytes")
    costs = RunCosts(**dict.fromkeys(names, nothing))
    with pytest.raises(ValueError, match="`once_s` holds values that are no numbers or below 0"):
        dataclasses.replace(costs, once_s=nothing + value)
