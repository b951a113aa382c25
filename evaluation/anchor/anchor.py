"""One published run predicted from another: the model of costs against the outside.

The rate of dense products is taken from Megatron-LM's single-GPU run, which sustains 39 TFLOP/s
over whole training steps.  Operators bound by memory and the update are priced apart here, so the
rate of products is the one at which the simulated step of that run takes what it took.  With that
rate, and no other constant, the one published run of Alpa is simulated.
"""

from __future__ import annotations

from dataclasses import dataclass

from evaluation.baselines.megatron import megatron_candidate
from evaluation.baselines.megatron_grid import MegatronPoint
from evaluation.baselines.result import Candidate, Refused
from evaluation.rates import first_devices, with_rate
from evaluation.steps import HALF, layers_of_model
from meshwise.baselines.pipelines.layer_costs import MethodCosts
from meshwise.baselines.pipelines.simulated import simulate
from meshwise.cluster.spec import ClusterSpec
from meshwise.errors import InfeasibleError
from meshwise.inter.search.search_space import SearchOptions
from meshwise.models.sizes.gpt_sizes import gpt_config
from meshwise.simulate.timeline import Timeline
from meshwise.trace.layers.layering import Layering
from meshwise.units import GIB, TERA

# Source: Shoeybi et al. 2019, section 5 and table 1: 1.2B parameters (hidden 1536, 40 layers, 16
# heads, sequence 1024, vocabulary 51200), 8 rows, recomputation, one V100-32GB.
MEGATRON_ROWS = 8
MEGATRON_FLOP_PER_S = 39 * TERA
# Source: NVIDIA ADLR, "MegatronLM's Supercharged V1.0": the same model, 62.4 TFLOP/s at 1288 ms a
# step.  That counts recomputation but for the last product of each block, as JAX traces it.
MEGATRON_FLOP = 62.4 * TERA * 1.288
MEGATRON_STEP_S = MEGATRON_FLOP / MEGATRON_FLOP_PER_S
# Source: Alpa repository, suite `gpt.perf_test_manual`, docs/facts.md section 6.
PUBLISHED_STEP_S = 2.464
PUBLISHED_PEAK_BYTES = 8.7e9
HOST = "1x p3.16xlarge"

_MEGATRON_POINT = MegatronPoint(
    data_parallel=1, tensor_parallel=1, stages=1, num_microbatches=1, is_sharded=False, chunks=1
)
# Alpa scatters gradients over replicas where it can (`prefer_reduce_scatter`).
_ALPA_POINT = MegatronPoint(
    data_parallel=2, tensor_parallel=2, stages=2, num_microbatches=4, is_sharded=True, chunks=1
)
# The rate is found by secants, to this part of the step.
_EXACT = 1e-3
_LONGEST_SEARCH = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """A simulated run.

    Attributes:
        flop_per_s: Rate of dense products.
        step_time_s: Of one step.
        peak_bytes: Of the worst device.
        bubble_share: Share of device time without work.
    """

    flop_per_s: float
    step_time_s: float
    peak_bytes: int
    bubble_share: float


def megatron_layers() -> tuple[Layering, float]:
    """Megatron-LM's model of 1.2B parameters, in its blocks."""
    config = gpt_config("1.3B", hidden=1536, num_layers=40, num_heads=16, **HALF)
    return layers_of_model(config, MEGATRON_ROWS, blocks=True)


def alpa_layers() -> tuple[Layering, float]:
    """GPT-2.6B with a batch of 32, in its blocks."""
    return layers_of_model(gpt_config("2.6B", **HALF), 32, blocks=True)


def megatron_run(layers: Layering, step_flop: float, flop_per_s: float) -> Simulated:
    """Megatron-LM's step on one V100."""
    cluster = first_devices(ClusterSpec.virtual(HOST), 1)
    return _run(layers, step_flop, flop_per_s, cluster, _MEGATRON_POINT)


def alpa_run(layers: Layering, step_flop: float, flop_per_s: float) -> Simulated:
    """The published run: (dp, op, pp) = (2, 2, 2), 4 micro-batches, everything recomputed."""
    return _run(layers, step_flop, flop_per_s, ClusterSpec.virtual(HOST), _ALPA_POINT)


def rate_of_products(layers: Layering, step_flop: float) -> float:
    """Return the rate in FLOP/s at which Megatron-LM's simulated step takes as long as it took."""
    low, high = float(MEGATRON_FLOP_PER_S), 2.0 * MEGATRON_FLOP_PER_S
    seconds = {rate: _step_s(layers, step_flop, rate) for rate in (low, high)}
    for _ in range(_LONGEST_SEARCH):
        # One device: nearly linear in the time of a FLOP.
        slope = (seconds[low] - seconds[high]) / (1 / low - 1 / high)
        rate = 1 / (1 / high + (MEGATRON_STEP_S - seconds[high]) / slope)
        seconds[rate] = _step_s(layers, step_flop, rate)
        if abs(seconds[rate] / MEGATRON_STEP_S - 1) <= _EXACT:
            return rate
        low, high = high, rate
    raise InfeasibleError(f"no rate of products gives a step of {MEGATRON_STEP_S:.3f} s")


def _step_s(layers: Layering, step_flop: float, flop_per_s: float) -> float:
    return megatron_run(layers, step_flop, flop_per_s).step_time_s


def _run(
    layers: Layering,
    step_flop: float,
    flop_per_s: float,
    cluster: ClusterSpec,
    point: MegatronPoint,
) -> Simulated:
    cluster = with_rate(cluster, "float16", flop_per_s, "Megatron-LM on one V100")
    options = SearchOptions(
        batch_size=layers.batch_size,
        step_flop=step_flop,
        num_microbatches=(point.num_microbatches,),
        remats=("full",),
        # The run on one device had 32 GB, and what another one took is to come out.
        memory_bytes=32 * GIB,
    )
    method = "MegatronSharded" if point.is_sharded else "Megatron"
    costs = MethodCosts(method, layers, options.intra)
    found = megatron_candidate(point, layers, cluster, options, costs)
    timeline = _timeline(found, cluster)
    return Simulated(
        flop_per_s=flop_per_s,
        step_time_s=timeline.step_time_s,
        peak_bytes=max(timeline.peak_bytes),
        bubble_share=timeline.bubble_share,
    )


def _timeline(found: Candidate | Refused, cluster: ClusterSpec) -> Timeline:
    if isinstance(found, Refused):
        raise InfeasibleError(f"{found.label}: {found.why}")
    return simulate(found.pipeline, cluster)
