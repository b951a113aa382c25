"""Baselines without a pipeline: the whole cluster is one mesh."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from evaluation.baselines.fixed_stages import FixedStages, RunPricer
from evaluation.baselines.grid_options import counts, memory_of, variants, whole
from evaluation.baselines.result import BaselineResult, Candidate, Refused, best_of
from meshwise.baselines.methods import plan_baseline
from meshwise.baselines.pipelines.layer_costs import MethodCosts, seconds_of
from meshwise.cluster.mesh import LogicalMesh
from meshwise.cluster.spec import ClusterSpec
from meshwise.cluster.submesh import SubmeshKind
from meshwise.errors import InfeasibleError
from meshwise.inter.cost_table.variant import Variant
from meshwise.inter.cost_table.variant_costs import LayerSource, logical_views
from meshwise.inter.layer_cost.footprint import footprint
from meshwise.inter.layer_cost.passes import pass_seconds
from meshwise.inter.search.search_space import SearchOptions
from meshwise.intra.options import IntraOptions
from meshwise.schedules.one_f_one_b import ONE_F_ONE_B
from meshwise.simulate.chunks import Chunk

HEURISTIC = "Heuristic"


@dataclass(frozen=True, slots=True, kw_only=True)
class OneStage:
    """A decider: the best of some methods over logical meshes, micro-batches and memory options.

    Attributes:
        name: Name of the baseline.
        methods: Some of `layer_methods.LAYER_METHODS`, or `HEURISTIC`.
        meshes: Returns the logical meshes of the whole cluster that are tried.
    """

    name: str
    methods: tuple[str, ...]
    meshes: Callable[[SubmeshKind], Sequence[LogicalMesh]] = logical_views

    def __call__(
        self,
        source: LayerSource,
        cluster: ClusterSpec,
        options: SearchOptions,
        report: Callable[[str], object] = lambda _: None,
    ) -> BaselineResult:
        """Plan all layers as one stage.

        Raises:
            ClusterError: hosts differ.
        """
        kind = whole(cluster)
        meshes = tuple(dict.fromkeys(self.meshes(kind)))
        costs = {method: _costs(method, source, options.intra) for method in self.methods}

        def tried() -> Iterator[Candidate | Refused]:
            for method in self.methods:
                for mesh in meshes:
                    ways = variants(kind, (mesh,), cluster, options)
                    if method == HEURISTIC:
                        # Propagation knows no price of memory.
                        ways = tuple({way.remat: way for way in ways}.values())
                    for b in counts(options):
                        label = f"{method} on {'x'.join(map(str, mesh.sizes))} B={b}"
                        report(label)
                        stage = FixedStages(
                            label=label,
                            kind=kind,
                            chunks=((0, len(source.classes) - 1),),
                            crossing_bytes=(),
                            num_microbatches=b,
                            schedule=ONE_F_ONE_B,
                            memory_bytes=memory_of(kind, options),
                        )
                        yield stage.best(ways, costs[method])

        return best_of(self.name, tried(), cluster, memory_of(kind, options))


def expert_meshes(kind: SubmeshKind) -> tuple[LogicalMesh, ...]:
    """Return the meshes of one and two axes.

    Experts are divided over one axis where they are no multiple of the devices.
    """
    return (*kind.logical_meshes(2), kind.mesh((kind.num_devices,)))


def _costs(method: str, source: LayerSource, options: IntraOptions) -> RunPricer:
    if method == HEURISTIC:
        return _Propagation(source=source, options=options)
    return MethodCosts(method, source, options)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Propagation:
    """Layers planned as one graph: the largest dim of every input split, the rest propagated.

    Attributes:
        source: The layers.
        options: Options of the planner of one mesh.
    """

    source: LayerSource
    options: IntraOptions

    def run(self, variant: Variant, num_microbatches: int, first: int, last: int) -> Chunk | None:
        """Return the cost of the layers `first` to `last`; None if they have no plan."""
        piece = self.source.graph(first, last, num_microbatches, variant.remat)
        mesh = variant.mesh
        try:
            found = plan_baseline(HEURISTIC, piece.graph, mesh, piece.batch_dims, self.options)
        except InfeasibleError:
            return None
        loop_s, once_s = seconds_of(piece, found.decision, mesh)
        memory = footprint(piece, found.decision, mesh)
        forward_s, backward_s = pass_seconds(piece, found.decision, mesh, loop_s)
        return Chunk(
            forward_s=forward_s,
            backward_s=backward_s,
            once_s=once_s,
            resident_bytes=memory.resident_bytes,
            microbatch_bytes=memory.microbatch_bytes,
            temporary_bytes=memory.temporary_bytes,
        )
