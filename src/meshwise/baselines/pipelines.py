"""Baselines whose stages the stage construction chooses: PP-DP, inter-op only, Alpa's own mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from meshwise.baselines.grid_options import counts, crossing_bytes, memory_of, variants
from meshwise.baselines.layer_costs import MethodCosts
from meshwise.baselines.layer_methods import ALPA_INTRA_OP, INTRA_OP
from meshwise.baselines.restricted_stages import one_device_a_stage
from meshwise.baselines.result import BaselineResult, Candidate, ChosenStage, Refused, best_of
from meshwise.baselines.simulated import SimulatedPipeline
from meshwise.cluster.spec import Cluster
from meshwise.errors import InfeasibleError, TraceError
from meshwise.inter.cost_table.variant_costs import LayerSource, logical_views
from meshwise.inter.search.search_space import SearchOptions, submeshes_of
from meshwise.inter.stages.objective import step_time
from meshwise.inter.stages.stage_construction import StagePlan, build_stages
from meshwise.inter.stages.stage_problem import StageProblem
from meshwise.inter.stages.transfers import transfer_s
from meshwise.schedules.one_f_one_b import ONE_F_ONE_B
from meshwise.simulate.chunks import Chunk

Report = Callable[[str], object]


def _silent(text: str) -> None:
    del text


def pp_dp(
    source: LayerSource, cluster: Cluster, options: SearchOptions, report: Report = _silent
) -> BaselineResult:
    """Pipeline and data parallelism: the space of PipeDream and Dapple.

    Source: Alpa section 8.1 (the baseline of figure 7c).
    """
    return _pipeline("PP-DP", "DataParallel", source, cluster, options, report, build_stages)


def inter_op_only(
    source: LayerSource, cluster: Cluster, options: SearchOptions, report: Report = _silent
) -> BaselineResult:
    """One device a stage; devices without a stage stay idle."""
    return _pipeline(
        "inter-op only",
        INTRA_OP,
        source,
        cluster,
        options,
        report,
        one_device_a_stage,
        devices=1,
        use_all_devices=False,
    )


def alpa(
    source: LayerSource, cluster: Cluster, options: SearchOptions, report: Report = _silent
) -> BaselineResult:
    """The paper's formulation: layers by communication alone, stages by eqs. 2 to 5.

    What is chosen is then priced like everything else: with transfers and what is done once.
    """
    return _pipeline(
        "Alpa", ALPA_INTRA_OP, source, cluster, options, report, lambda p: build_stages(p, "alpa")
    )


def _pipeline(
    name: str,
    method: str,
    source: LayerSource,
    cluster: Cluster,
    options: SearchOptions,
    report: Report,
    decide: Callable[[StageProblem], StagePlan],
    *,
    devices: int | None = None,
    use_all_devices: bool = True,
) -> BaselineResult:
    """The best stages over B.

    Args:
        name: Of the baseline.
        method: Of the layers.
        source: The layers.
        cluster: Equal hosts.
        options: Of the search.
        report: Is told of progress.
        decide: Chooses the stages.
        devices: Only submeshes of so many devices.
        use_all_devices: Whether every device must have a stage.
    """
    kinds, submeshes = submeshes_of(
        cluster, every=options.every_submesh, memory_bytes=options.memory_bytes
    )
    keep = [i for i, k in enumerate(kinds) if devices in (None, k.num_devices)]
    kinds, submeshes = [kinds[i] for i in keep], [submeshes[i] for i in keep]
    ways = [variants(kind, logical_views(kind), cluster, options) for kind in kinds]
    costs = MethodCosts(method, source, options.intra)

    def chosen(b: int) -> Candidate:
        problem = StageProblem(
            costs=costs.table(submeshes, ways, b),
            num_devices=cluster.num_devices,
            num_microbatches=b,
            schedule=ONE_F_ONE_B,
            transfer_s=transfer_s(source, kinds, b),
            use_all_devices=use_all_devices,
        )
        plan = decide(problem)
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
            label=f"{len(stages)} stages B={b}",
            objective_s=step_time(problem, plan.stages).total_s,
            stages=tuple(stages),
            pipeline=SimulatedPipeline(
                chunks=tuple(chunks),
                crossing_bytes=tuple(crossing_bytes(source, s.last_layer, b) for s in stages[:-1]),
                meshes=tuple(kinds[s.submesh] for s in plan.stages),
                num_microbatches=b,
                schedule=ONE_F_ONE_B,
            ),
        )

    def tried() -> Iterator[Candidate | Refused]:
        for b in counts(options):
            report(f"{name} B={b}")
            try:
                yield chosen(b)
            except (InfeasibleError, TraceError) as error:
                yield Refused(label=f"B={b}", why=str(error))

    return best_of(name, tried(), cluster, memory_of(kinds[0], options))
