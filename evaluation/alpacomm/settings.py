"""End-to-end settings: models in two stages, planned once and kept in files.

The paper's own table of models is not at hand: GPT-1.3B and 2.6B, and U-Transformers of Alpa's
suite stand for it (docs/facts.md section 3).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TypeAlias

from evaluation.alpacomm.stages import PlannedStages, Stage, in_two_dims
from evaluation.baselines.megatron import megatron_candidate
from evaluation.baselines.megatron_grid import MegatronPoint
from evaluation.baselines.result import Refused
from evaluation.paper.settings import FLOAT16_FLOP_PER_S
from evaluation.rates import with_rate
from evaluation.steps import HALF, layers_of_model
from meshwise.baselines.pipelines.layer_costs import MethodCosts
from meshwise.cluster.spec import ClusterSpec
from meshwise.errors import InfeasibleError
from meshwise.graph.layout import Layout
from meshwise.inter.cost_table.variant_costs import VariantCosts
from meshwise.inter.search.finishing import finished
from meshwise.inter.search.search import search, stage_plan
from meshwise.inter.search.search_space import SearchOptions
from meshwise.models.named import model_config
from meshwise.plan.places import stage_hosts
from meshwise.schedules.one_f_one_b import ONE_F_ONE_B
from meshwise.simulate.stage_pipeline import chunk_of
from meshwise.system.collector import collection_paused
from meshwise.trace.layers.layering import Layering

HOST = "p3.8xlarge"
STAGES = 2
Report: TypeAlias = Callable[[str], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndToEnd:
    """A model on hosts of four V100, in two stages of whole hosts.

    Attributes:
        name: For the command line and for files.
        model: One of `models.named.MODEL_NAMES`.
        num_hosts: Hosts.
        batch: Rows of a step.
        num_microbatches: B.
        grid: (dp, tp) of Megatron-LM's way in each stage; None for a plan of ours.
    """

    name: str
    model: str
    num_hosts: int
    batch: int
    num_microbatches: int
    grid: tuple[int, int] | None = None

    @property
    def is_gpt(self) -> bool:
        """Whether it is a transformer, in float16; others are in float32."""
        return self.model.startswith("gpt")

    @property
    def cluster_text(self) -> str:
        """As `Cluster.virtual` takes it."""
        return f"{self.num_hosts}x {HOST}"


def _row(name: str, model: str, num_hosts: int, batch: int, count: int) -> EndToEnd:
    return EndToEnd(
        name=name, model=model, num_hosts=num_hosts, batch=batch, num_microbatches=count
    )


SETTINGS: Mapping[str, EndToEnd] = MappingProxyType(
    {
        s.name: s
        for s in (
            _row("gpt-1.3b", "gpt-1.3b", 2, 1024, 64),
            EndToEnd(
                name="gpt-1.3b-tp",
                model="gpt-1.3b",
                num_hosts=2,
                batch=1024,
                num_microbatches=64,
                grid=(2, 2),
            ),
            EndToEnd(
                name="gpt-2.6b-tp",
                model="gpt-2.6b",
                num_hosts=4,
                batch=1024,
                num_microbatches=64,
                grid=(2, 4),
            ),
            _row("u-transformer-1b", "u-transformer-1b", 2, 256, 16),
            _row("u-transformer-2b", "u-transformer-2b", 4, 256, 16),
        )
    }
)


def planned_stages(setting: EndToEnd, report: Report = lambda _: None) -> PlannedStages:
    """Plan a setting.

    Args:
        setting: Which.
        report: Is told of progress.

    Raises:
        InfeasibleError: no plan fits.
    """
    cluster = with_rate(
        ClusterSpec.virtual(setting.cluster_text),
        "float16",
        FLOAT16_FLOP_PER_S,
        "Megatron-LM on one V100",
    )
    with collection_paused():
        config = model_config(setting.model, **(HALF if setting.is_gpt else {}))
        layers, flop = layers_of_model(config, setting.batch, blocks=setting.is_gpt)
        options = SearchOptions(
            batch_size=setting.batch,
            step_flop=flop,
            num_microbatches=(setting.num_microbatches,),
            schedules=(ONE_F_ONE_B,),
            num_stages=STAGES,
        )
        if setting.grid is None:
            stages = _searched(layers, cluster, options, report)
            plan = "planned by Meshwise for two stages and 1F1B"
        else:
            stages = _megatron(setting, layers, cluster, options)
            dp, tp = setting.grid
            plan = f"Megatron-LM's (dp, tp, pp) = ({dp}, {tp}, {STAGES}), distributed optimizer"
    return PlannedStages(
        setting=setting.name,
        model=setting.model,
        cluster=setting.cluster_text,
        plan=plan,
        num_microbatches=setting.num_microbatches,
        rows=setting.batch // setting.num_microbatches,
        stages=stages,
        created=datetime.now(UTC).date().isoformat(),
    )


def _searched(
    layers: Layering, cluster: ClusterSpec, options: SearchOptions, report: Report
) -> tuple[Stage, ...]:
    costs = VariantCosts(layers, options.intra)
    found, _ = search(layers, cluster, options, report, costs)
    plan, _ = finished(
        layers,
        cluster,
        found,
        costs,
        batch_size=options.batch_size,
        step_flop=options.step_flop,
        memory_bytes=options.memory_bytes,
    )
    stages: list[Stage] = []
    for stage, chosen in zip(plan.stages, found.plan.stages, strict=True):
        place = stage_hosts(stage, cluster)
        assert place is not None  # the plan was made for this cluster
        run = stage_plan(found, costs, chosen)
        stages.append(
            Stage(
                # Each way of the comparison has flows of its own.
                chunk=replace(chunk_of(stage), forward_passing=None, backward_passing=None),
                first_host=place.hosts.start,
                submesh=stage.submesh,
                mesh=stage.mesh.sizes,
                enters=in_two_dims(run.enters),
                leaves=in_two_dims(run.leaves),
                send_bytes=stage.send_bytes,
            )
        )
    return tuple(stages)


def _megatron(
    setting: EndToEnd, layers: Layering, cluster: ClusterSpec, options: SearchOptions
) -> tuple[Stage, ...]:
    """Between its stages rows are split over dp and whole on each device of tp."""
    assert setting.grid is not None
    dp, tp = setting.grid
    point = MegatronPoint(
        data_parallel=dp,
        tensor_parallel=tp,
        stages=STAGES,
        num_microbatches=setting.num_microbatches,
        is_sharded=True,
        chunks=1,
    )
    costs = MethodCosts("MegatronSharded", layers, options.intra)
    found = megatron_candidate(point, layers, cluster, options, costs)
    if isinstance(found, Refused):
        raise InfeasibleError(f"{setting.name}: {found.label}: {found.why}")
    pipeline = found.pipeline
    sent = (*(round(b) for b in pipeline.crossing_bytes), 0)
    split = Layout(((0,), ()))
    return tuple(
        Stage(
            chunk=chunk,
            first_host=k * setting.num_hosts // STAGES,
            submesh=kind.shape,
            mesh=setting.grid,
            enters=split,
            leaves=split,
            send_bytes=num_bytes,
        )
        for k, (chunk, kind, num_bytes) in enumerate(
            zip(pipeline.chunks, pipeline.meshes, sent, strict=True)
        )
    )
