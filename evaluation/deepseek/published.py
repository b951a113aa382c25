"""The parallelism of the report as a plan of ours, and what a plan takes if exchanges take less.

Source: DeepSeek-AI 2024 (DeepSeek-V3, sections 3.2 and 4.2): 16 stages in a DualPipe, experts over
64 devices of 8 hosts, optimizer state over all copies, no tensor parallelism; a token goes to at
most 4 hosts; exchanges run beside computation.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from evaluation.deepseek.model import BATCH, EXCHANGING, deepseek_config, deepseek_step
from evaluation.steps import SIGNATURE
from meshwise.baselines.pipelines.block_layers import block_ranges
from meshwise.cluster.collectives import ALL_TO_ALL
from meshwise.cluster.spec import ClusterSpec
from meshwise.models.expert_llama import ExpertLlamaConfig
from meshwise.plan.counts.collectives import collective_s
from meshwise.plan.plan import Plan
from meshwise.plan.stage import REMATS, Stage
from meshwise.planner.pipeline import layers_of, search_options
from meshwise.planner.trainer_point_plan import PointPlanner
from meshwise.request.pipeline_request import PipelineRequest
from meshwise.schedules.dual_pipe_v import DUAL_PIPE_V
from meshwise.schedules.pipeline_schedule import PipelineSchedule
from meshwise.simulate.plan import simulate_plan
from meshwise.system.collector import collection_paused
from meshwise.trainers.megatron import Megatron
from meshwise.trainers.point import TrainerPoint
from meshwise.trainers.sizes import sizes_of

# Sequences of a micro-batch that a device has; the report does not say how many.
_SEQUENCES = (1, 2)
# Of what is exchanged with others: all; at most 4 hosts of 8, which are 3.5 others in place of 7;
# nothing, as if computation hid all of it.
SHARES = (1.0, 0.5, 0.0)


class _DualPipe(Megatron):
    """What Megatron-LM splits, with DeepSeek's schedule in its form of a V."""

    def schedule(self, point: TrainerPoint) -> PipelineSchedule:
        """Return DualPipeV."""
        return DUAL_PIPE_V


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What the report says.

    Attributes:
        config: The model.
        batch: Sequences of a step.
        stages: Meshes of the pipeline.
        expert_devices: Devices that share the experts of a layer.
    """

    config: ExpertLlamaConfig = field(default_factory=deepseek_config)
    batch: int = BATCH
    stages: int = 16
    expert_devices: int = 64

    def plans(self, cluster: ClusterSpec) -> Iterator[tuple[TrainerPoint, Plan]]:
        """Yield the points and plans that fit, for each size of a micro-batch and each remat.

        Args:
            cluster: Hosts whose devices are a multiple of `stages * expert_devices`.
        """
        with collection_paused():
            step, *args = deepseek_step(self.config, self.batch)
            layers, flop = layers_of(step, tuple(args), {}, SIGNATURE, block_ranges)
            request = PipelineRequest(cluster=cluster, schedules=(DUAL_PIPE_V,))
            options = search_options(layers, flop, request)
            planner = PointPlanner(
                trainer=_DualPipe(), layers=layers, cluster=cluster, options=options
            )
            sizes = sizes_of(layers, cluster, options)
            for point in self._points(cluster.num_devices // self.stages):
                found = planner.plan(point, sizes)
                if found is not None:
                    yield point, found.plan

    def _points(self, of_stage: int) -> Iterator[TrainerPoint]:
        for sequences, remat in itertools.product(_SEQUENCES, REMATS):
            yield TrainerPoint(
                pipeline=self.stages,
                data=of_stage // self.expert_devices,
                expert=self.expert_devices,
                shards_optimizer=True,
                num_microbatches=self.batch // (of_stage * sequences),
                chunks=DUAL_PIPE_V.chunks,
                remat=remat,
            )


def exchange_s(plan: Plan) -> list[float]:
    """Return for each stage the seconds of exchanges with experts, for one micro-batch."""
    found = [0.0] * len(plan.stages)
    for item in plan.collectives:
        of_experts = any(f"({name}" in item.where for name in EXCHANGING)
        if of_experts and item.kind == ALL_TO_ALL and item.count >= plan.num_microbatches:
            once_s = collective_s(item, plan.stages[item.stage].mesh)
            found[item.stage] += once_s * item.count / plan.num_microbatches
    return found


def with_exchanges(plan: Plan, share: float) -> float:
    """Return the simulated seconds of a step in which exchanges with experts take less.

    Args:
        plan: The plan.
        share: Part of their seconds that stays.
    """
    stages = tuple(
        _less(stage, (1 - share) * seconds)
        for stage, seconds in zip(plan.stages, exchange_s(plan), strict=True)
    )
    return simulate_plan(replace(plan, stages=stages)).timeline.step_time_s


def _less(stage: Stage, seconds: float) -> Stage:
    """Return a stage that takes so much less; a forward pass exchanges as often as each other."""
    passes = 2 if stage.remat == REMATS[0] else 3
    ahead = seconds / passes
    return replace(
        stage, forward_s=stage.forward_s - ahead, backward_s=stage.backward_s - seconds + ahead
    )
