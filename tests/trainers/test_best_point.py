"""The best point is the best of all points; where none fits, the nearest is named."""

from __future__ import annotations

import pytest

import meshwise as mw
from doubles.layered import gpt_layers, perceptron_layers
from meshwise.baselines.pipelines.layer_pieces import LayerPieces
from meshwise.errors import ClusterError, InfeasibleError
from meshwise.inter.search.search_space import PRICES, SearchOptions
from meshwise.trainers.best_point import best_point
from meshwise.trainers.priced_points import PointPrices, least_s
from meshwise.trainers.registry import TRAINERS
from meshwise.trainers.sizes import sizes_of

ROWS = 16
CLUSTER = mw.Cluster.virtual("1x p3.8xlarge")
OPTIONS = SearchOptions(batch_size=ROWS, step_flop=1e9, num_microbatches=(2, 4))


@pytest.fixture(scope="module")
def gpt():
    # Large enough that no device alone is fastest.
    return gpt_layers(ROWS, hidden=256, num_layers=2)


@pytest.mark.parametrize(
    "name",
    [n if n == "megatron" else pytest.param(n, marks=pytest.mark.slow) for n in TRAINERS],
)
def test_it_is_the_fastest_of_all_points(gpt, name):
    trainer = TRAINERS[name]
    best = best_point(trainer, gpt, CLUSTER, OPTIONS)
    prices = PointPrices(
        trainer=trainer,
        source=gpt,
        pieces=LayerPieces(gpt),
        cluster=CLUSTER,
        options=OPTIONS,
        sizes=sizes_of(gpt, CLUSTER, OPTIONS),
    )
    seconds = {}
    for point in trainer.points(prices.sizes):
        priced = prices.priced(point, PRICES[-1] if point.fsdp > 1 else PRICES[0])
        seconds[point] = prices.simulated(priced).step_time_s
        few = prices.priced(point, PRICES[0])
        assert least_s(few, point.num_microbatches) <= seconds[point] * (1 + 1e-9)
    assert best.num_points == len(seconds)
    assert best.timeline.step_time_s == pytest.approx(min(seconds.values()), rel=1e-9)
    assert seconds[best.point] == pytest.approx(best.timeline.step_time_s, rel=1e-9)
    # The formula adds the longest update, which may run while other stages still work.
    assert 0 < best.formula_s <= 1.01 * best.timeline.step_time_s
    assert max(best.timeline.peak_bytes) <= prices.memory_bytes


@pytest.mark.slow
def test_with_less_memory_it_recomputes_or_says_what_is_nearest(gpt):
    trainer = TRAINERS["megatron"]
    free = best_point(trainer, gpt, CLUSTER, OPTIONS)
    peak = max(free.timeline.peak_bytes)

    def within(memory: float):
        options = SearchOptions(
            batch_size=ROWS, step_flop=1e9, num_microbatches=(2, 4), memory_bytes=int(memory)
        )
        return best_point(trainer, gpt, CLUSTER, options)

    less = within(0.9 * peak)
    assert max(less.timeline.peak_bytes) <= 0.9 * peak
    assert less.timeline.step_time_s >= free.timeline.step_time_s
    with pytest.raises(InfeasibleError) as caught:
        within(0.05 * peak)
    text = str(caught.value)
    assert f"none of {free.num_points} points fits" in text
    assert "nearest is " in text
    assert "which needs at least" in text
    assert "too much" in text


def test_no_point_and_mixed_hosts_are_told(gpt):
    odd = SearchOptions(batch_size=7, step_flop=1e9, num_microbatches=(7,))
    two = mw.Cluster.virtual("2x p3.8xlarge")
    with pytest.raises(InfeasibleError, match="MaxText 0.2.5 has no setting for .* batch of 7"):
        best_point(TRAINERS["maxtext"], perceptron_layers(7, 8, 16, 3), two, odd)
    mixed = mw.Cluster.virtual("1x p3.8xlarge + 1x dgx-a100")
    with pytest.raises(ClusterError, match="differ"):
        best_point(TRAINERS["megatron"], gpt, mixed, OPTIONS)
