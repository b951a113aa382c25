"""All baselines by name: other deciders over the same layers, costs and simulator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from meshwise.baselines import megatron, one_stage, pipelines
from meshwise.baselines.result import BaselineResult
from meshwise.cluster.spec import Cluster
from meshwise.inter.cost_table.variant_costs import LayerSource
from meshwise.inter.search.search_space import SearchOptions

Decider = Callable[[LayerSource, Cluster, SearchOptions, Callable[[str], object]], BaselineResult]

DECIDERS: Mapping[str, Decider] = MappingProxyType(
    {
        "Megatron-LM": megatron.megatron_lm,
        "DeepSpeed": one_stage.deepspeed,
        "PP-DP": pipelines.pp_dp,
        "intra-op only": one_stage.intra_op_only,
        "inter-op only": pipelines.inter_op_only,
        "data parallel": one_stage.data_parallel,
        "ZeRO-2": one_stage.zero2,
        "ZeRO-3": one_stage.zero3,
        "Heuristic": one_stage.heuristic,
        "Alpa": pipelines.alpa,
    }
)
