"""All baselines by name: other deciders over the same layers, costs and simulator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from evaluation.baselines.built_stages import build_stages
from evaluation.baselines.megatron import megatron_lm
from evaluation.baselines.one_stage import HEURISTIC, OneStage, expert_meshes
from evaluation.baselines.restricted_stages import one_device_a_stage
from evaluation.baselines.result import BaselineResult
from evaluation.baselines.stage_search import StageSearch
from meshwise.baselines.pipelines.layer_methods import ALPA_INTRA_OP, INTRA_OP
from meshwise.cluster.spec import ClusterSpec
from meshwise.inter.cost_table.variant_costs import LayerSource
from meshwise.inter.search.search_space import SearchOptions
from meshwise.inter.stages.stage_construction import StagePlan
from meshwise.inter.stages.stage_problem import StageProblem

Decider = Callable[
    [LayerSource, ClusterSpec, SearchOptions, Callable[[str], object]], BaselineResult
]


def _alpa_stages(problem: StageProblem) -> StagePlan:
    """Choose stages by eqs. 2 to 5; they are then priced like everything else."""
    return build_stages(problem, "alpa")


# Sources: Alpa section 8.1 (DeepSpeed is the baseline of figure 7b, PP-DP, the space of PipeDream
# and Dapple, that of figure 7c), section 8.2 (inter-op only); docs/facts.md section 6, the ablation
# of figure 8 (Heuristic).
DECIDERS: Mapping[str, Decider] = MappingProxyType(
    {
        "Megatron-LM": megatron_lm,
        "DeepSpeed": OneStage(
            name="DeepSpeed", methods=("ExpertZero2", "ExpertZero3"), meshes=expert_meshes
        ),
        "PP-DP": StageSearch(name="PP-DP", method="DataParallel"),
        "intra-op only": OneStage(name="intra-op only", methods=(INTRA_OP,)),
        "inter-op only": StageSearch(
            name="inter-op only",
            method=INTRA_OP,
            decide=one_device_a_stage,
            devices=1,
            use_all_devices=False,
        ),
        "data parallel": OneStage(name="data parallel", methods=("DataParallel",)),
        "ZeRO-2": OneStage(name="ZeRO-2", methods=("Zero2",)),
        "ZeRO-3": OneStage(name="ZeRO-3", methods=("Zero3",)),
        "Heuristic": OneStage(name="Heuristic", methods=(HEURISTIC,)),
        "Alpa": StageSearch(name="Alpa", method=ALPA_INTRA_OP, decide=_alpa_stages),
    }
)
