"""Baselines on one host of 8: the paper's ordering among themselves, at the size of a few layers.

Source: docs/facts.md section 6 (figures 7 and 8).
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from evaluation.baselines.deciders import DECIDERS
from evaluation.baselines.megatron import megatron_lm
from evaluation.paper.ablations import equal_layer

import meshwise as mw
from doubles.few import few
from doubles.layered import gpt_layers, moe_layers, options, perceptron_layers
from meshwise.errors import InfeasibleError, TraceError
from meshwise.inter.search.search import search

HOST = mw.Cluster.virtual("1x p3.16xlarge")
GIB = 2**30
MICROBATCHED = ("Megatron-LM", "inter-op only")


def results(layers, names, whole, **changes):
    """What deciders find; those in `whole` may recompute activations."""
    asked = options(layers, remats=("none", "full"), **changes)
    plain = replace(asked, remats=("none",))
    return {
        n: DECIDERS[n](layers, HOST, asked if n in whole else plain, lambda _: None) for n in names
    }


@pytest.fixture(scope="module")
def gpt():
    layers = gpt_layers(64, num_layers=2, hidden=4096, num_heads=32, seq_len=1024, dtype="float16")
    names = set(DECIDERS) - {"DeepSpeed", "Alpa"}
    whole = ("data parallel",)
    return results(layers, names, whole, num_microbatches=(8,), memory_bytes=5 * GIB)


@pytest.fixture(scope="module")
def moe():
    layers = moe_layers(
        32,
        num_layers=4,
        hidden=1024,
        ffn=8192,
        num_heads=16,
        seq_len=1024,
        group_size=1024,
        num_experts=16,
        dtype="float16",
    )
    names = ("DeepSpeed", "data parallel", "ZeRO-3", "intra-op only", "inter-op only")
    whole = ("data parallel",)
    return results(layers, names, whole, num_microbatches=(4,), memory_bytes=4 * GIB)


@pytest.mark.slow
def test_data_parallel_does_not_fit_where_others_do(gpt):
    result = gpt["data parallel"]
    assert not result.fits
    assert "does not fit into memory" in result.why
    assert all(t.why for t in result.tried)
    for name in ("ZeRO-2", "ZeRO-3", "Megatron-LM", "intra-op only"):
        assert gpt[name].fits, gpt[name].why
        assert gpt[name].peak_bytes <= 5 * GIB


@pytest.mark.slow
def test_free_plans_of_one_stage_are_the_fastest_without_a_pipeline(gpt):
    free = gpt["intra-op only"].step_time_s
    for name in ("ZeRO-2", "ZeRO-3", "Heuristic"):
        assert free <= gpt[name].step_time_s * (1 + 1e-9), name


@pytest.mark.slow
def test_megatron_is_close_to_free_plans_and_the_heuristic_is_not(gpt):
    free = gpt["intra-op only"].step_time_s
    assert gpt["Megatron-LM"].step_time_s < 1.1 * free
    assert gpt["Heuristic"].step_time_s > 1.3 * free


@pytest.mark.slow
def test_megatrons_choice_is_one_of_its_grid(gpt):
    result = gpt["Megatron-LM"]
    assert result.chosen in {t.label for t in result.tried}
    assert result.num_microbatches == 8
    assert len({t.label for t in result.tried}) == len(result.tried)
    # Four blocks are no multiple of 8: there is no pipeline of as many stages.
    assert {t.label: t.why for t in result.tried}["pp=8"].startswith("2 layers cannot be divided")


@pytest.mark.slow
def test_pipelines_of_whole_replicas_hold_too_much_or_wait(gpt):
    for name in ("PP-DP", "inter-op only"):
        result = gpt[name]
        assert not result.fits or result.step_time_s > gpt["Megatron-LM"].step_time_s, name


@pytest.mark.slow
def test_experts_are_split_in_the_best_plans_of_a_mixture_of_experts(moe):
    deepspeed = moe["DeepSpeed"]
    assert deepspeed.fits
    assert not moe["data parallel"].fits
    assert moe["ZeRO-3"].step_time_s > 1.2 * deepspeed.step_time_s
    free = moe["intra-op only"].step_time_s
    assert free <= deepspeed.step_time_s * (1 + 1e-9) < 1.1 * free


@pytest.mark.slow
def test_one_device_a_stage_has_no_room_for_experts(moe):
    result = moe["inter-op only"]
    assert not result.fits
    assert "layer 1 does not fit into memory" in result.why


@pytest.mark.parametrize("sizes", few([(512, 256, 1024), (4096, 64, 64)], [(512, 256, 1024)]))
def test_the_search_is_never_above_a_baseline(sizes):
    """Its space holds theirs, but for stages that interleave."""
    layers = perceptron_layers(*sizes)
    cluster = mw.Cluster.virtual("1x p3.8xlarge")
    asked = options(layers, num_microbatches=(4,), use_all_devices=False, prices=(0.0,))
    asked = replace(asked, remats=("none", "full"))
    found, _ = search(layers, cluster, asked)
    for name, decide in DECIDERS.items():
        result = decide(layers, cluster, asked, lambda _: None)
        if result.fits and "interleaved" not in result.chosen:
            assert found.plan.total_s <= result.objective_s * (1 + 1e-6), name


def test_a_rule_chooses_among_plans_not_among_bounds():
    layers = perceptron_layers(1024, 256, 1024)
    cluster = mw.Cluster.virtual("1x p3.8xlarge")
    asked = options(layers, num_microbatches=(4,))
    found, costs = search(layers, cluster, asked, rule=equal_layer)
    for s in found.plan.stages:
        runs = costs.runs(found.variants[s.submesh][s.variant], 4)
        cell = (s.first_layer, s.last_layer, s.submesh, s.variant)
        for name in ("once_s", "resident_bytes", "microbatch_bytes", "temporary_bytes"):
            assert getattr(found.problem.costs, name)[cell] == getattr(runs, name)[cell[:2]], name
    free, _ = search(layers, cluster, asked, costs=costs)
    assert free.plan.total_s <= found.plan.total_s * (1 + 1e-9)
    tiny = options(layers, num_microbatches=(4,), memory_bytes=1 << 16)
    with pytest.raises(InfeasibleError, match="no stages that follow the rule fit"):
        search(layers, cluster, tiny, costs=costs, rule=equal_layer)


def test_alpas_mode_is_priced_like_the_others():
    layers = perceptron_layers(1024, 256, 1024)
    cluster = mw.Cluster.virtual("1x p3.8xlarge")
    asked = options(layers, num_microbatches=(4,), remats=("none",))
    result = DECIDERS["Alpa"](layers, cluster, asked, lambda _: None)
    free = DECIDERS["intra-op only"](layers, cluster, asked, lambda _: None)
    assert result.fits
    # Communication alone was minimised, yet computation is in the price.
    assert result.objective_s >= 0.5 * free.objective_s
    flop = 3 * asked.step_flop
    rate = dict(cluster.device.flop_per_s)["float32"] * cluster.num_devices
    assert result.step_time_s > 0.9 * flop / rate


def test_equal_inputs_give_equal_results():
    layers = perceptron_layers(256, 64, 256)
    asked = options(layers, num_microbatches=(2,), remats=("none",))
    cluster = mw.Cluster.virtual("1x p3.8xlarge")
    one, two = (megatron_lm(layers, cluster, asked) for _ in range(2))
    assert one == two


def test_micro_batches_smaller_than_a_group_of_experts_are_passed_over():
    # Groups of 64 tokens are two rows of 32: four micro-batches of one row have none.
    layers = moe_layers(4, num_layers=2, seq_len=32, group_size=64)
    cluster = mw.Cluster.virtual("1x p3.2xlarge")
    asked = options(layers, remats=("none",))
    found = [DECIDERS[n](layers, cluster, asked, lambda _: None) for n in MICROBATCHED]
    ours, _ = search(layers, cluster, asked)
    assert ours.tried[4] == math.inf
    for result in found:
        refused = [t.why for t in result.tried if "B=4" in t.label]
        assert refused
        assert all("does not separate into micro-batches" in why for why in refused)
        assert ours.plan.total_s <= result.step_time_s * (1 + 1e-9) < math.inf
    with pytest.raises(TraceError, match="does not separate into micro-batches"):
        search(layers, cluster, options(layers, num_microbatches=(4,)))
