"""Baselines whose stages the stage construction chooses: PP-DP, inter-op only, Alpa's own mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from evaluation.baselines.built_stages import build_stages
from evaluation.baselines.grid_options import counts, crossing_bytes, memory_of, variants
from evaluation.baselines.result import (
    BaselineResult,
    Candidate,
    ChosenStage,
    Refused,
    best_of,
)
from meshwise.baselines.pipelines.layer_costs import MethodCosts
from meshwise.baselines.pipelines.simulated import SimulatedPipeline
from meshwise.cluster.spec import ClusterSpec
from meshwise.cluster.submesh import SubmeshKind
from meshwise.errors import InfeasibleError, TraceError
from meshwise.inter.cost_table.variant import Variant
from meshwise.inter.cost_table.variant_costs import LayerSource, logical_views
from meshwise.inter.search.search_space import SearchOptions, submeshes_of
from meshwise.inter.stages.objective import step_time
from meshwise.inter.stages.stage_construction import StagePlan
from meshwise.inter.stages.stage_problem import StageProblem
from meshwise.inter.stages.transfers import transfer_s
from meshwise.schedules.one_f_one_b import ONE_F_ONE_B
from meshwise.simulate.chunks import Chunk
from meshwise.units import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSearch:
    """A decider: the best stages of layers that are planned as one method does.

    Attributes:
        name: Name of the baseline.
        method: The method of the layers, one of `layer_methods.LAYER_METHODS`.
        decide: Chooses the stages.
        devices: Number of devices of the submeshes that may be used; None for any.
        use_all_devices: Whether every device must have a stage.
    """

    name: str
    method: str
    decide: Callable[[StageProblem], StagePlan] = build_stages
    devices: int | None = None
    use_all_devices: bool = True

    def __call__(
        self,
        source: LayerSource,
        cluster: ClusterSpec,
        options: SearchOptions,
        report: Callable[[str], object] = lambda _: None,
    ) -> BaselineResult:
        """Choose the number of micro-batches and the stages."""
        kinds, submeshes = submeshes_of(
            cluster, every=options.every_submesh, memory_bytes=options.memory_bytes
        )
        keep = [i for i, k in enumerate(kinds) if self.devices in (None, k.num_devices)]
        kinds, submeshes = [kinds[i] for i in keep], [submeshes[i] for i in keep]
        ways = [variants(kind, logical_views(kind), cluster, options) for kind in kinds]
        costs = MethodCosts(self.method, source, options.intra)

        def chosen(b: int) -> Candidate:
            problem = StageProblem(
                costs=costs.table(submeshes, ways, b),
                num_devices=cluster.num_devices,
                num_microbatches=b,
                schedule=ONE_F_ONE_B,
                transfer_s=transfer_s(source, kinds, b, num_hosts=cluster.num_hosts),
                use_all_devices=self.use_all_devices,
            )
            return _candidate(problem, self.decide(problem), kinds, ways, costs)

        def tried() -> Iterator[Candidate | Refused]:
            for b in counts(options):
                report(f"{self.name} B={b}")
                try:
                    yield chosen(b)
                except (InfeasibleError, TraceError) as error:
                    yield Refused(label=f"B={b}", why=str(error))

        return best_of(self.name, tried(), cluster, memory_of(kinds[0], options))


def _candidate(
    problem: StageProblem,
    plan: StagePlan,
    kinds: Sequence[SubmeshKind],
    ways: Sequence[Sequence[Variant]],
    costs: MethodCosts,
) -> Candidate:
    """Return chosen stages with what the simulator needs of them."""
    b = problem.num_microbatches
    chunks: list[Chunk] = []
    stages: list[ChosenStage] = []
    for stage in plan.stages:
        way = ways[stage.submesh][stage.variant]
        cost = costs.run(way, b, stage.first_layer, stage.last_layer)
        assert cost is not None
        chunks.append(cost)
        stages.append(
            ChosenStage(
                first_layer=stage.first_layer,
                last_layer=stage.last_layer,
                submesh=kinds[stage.submesh].shape,
                mesh=way.mesh.sizes,
                remat=way.remat,
            )
        )
    return Candidate(
        label=f"{counted(len(stages), 'stage')} B={b}",
        objective_s=step_time(problem, plan.stages).total_s,
        stages=tuple(stages),
        pipeline=SimulatedPipeline(
            chunks=tuple(chunks),
            crossing_bytes=tuple(
                crossing_bytes(costs.source, s.last_layer, b) for s in stages[:-1]
            ),
            meshes=tuple(kinds[s.submesh] for s in plan.stages),
            num_microbatches=b,
            schedule=ONE_F_ONE_B,
        ),
    )
