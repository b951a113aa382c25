"""Baselines without a pipeline: the whole cluster is one mesh."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from meshwise.baselines.fixed_stages import fixed_stages
from meshwise.baselines.grid_options import counts, memory_of, separated, variants, whole
from meshwise.baselines.layer_costs import MethodCosts
from meshwise.baselines.layer_methods import INTRA_OP
from meshwise.baselines.methods import plan_baseline
from meshwise.baselines.result import BaselineResult, Candidate, Refused, best_of
from meshwise.cluster.mesh import LogicalMesh
from meshwise.cluster.spec import Cluster
from meshwise.cluster.submesh import SubmeshKind
from meshwise.errors import InfeasibleError
from meshwise.inter.cost_table.variant import Variant
from meshwise.inter.cost_table.variant_costs import LayerSource, logical_views
from meshwise.inter.layer_cost.footprint import footprint
from meshwise.inter.layer_cost.passes import pass_seconds
from meshwise.inter.layer_cost.recomputation import again_s
from meshwise.inter.search.search_space import SearchOptions
from meshwise.intra.price import step_time_s
from meshwise.intra.regions import regions
from meshwise.schedules.one_f_one_b import ONE_F_ONE_B
from meshwise.simulate.chunks import Chunk

Report = Callable[[str], object]


def _silent(text: str) -> None:
    del text


def one_mesh(
    name: str,
    methods: Sequence[str],
    source: LayerSource,
    cluster: Cluster,
    options: SearchOptions,
    report: Report = _silent,
    *,
    meshes: Sequence[LogicalMesh] | None = None,
) -> BaselineResult:
    """The best of some methods over logical meshes, micro-batches and memory options.

    Args:
        name: Of the baseline.
        methods: Of `layer_methods.LAYER_METHODS`.
        source: The layers.
        cluster: Equal hosts.
        options: Of the search.
        report: Is told of progress.
        meshes: To try; None: those of the search.

    Raises:
        ClusterError: hosts differ.
    """
    kind = whole(cluster)
    meshes = tuple(dict.fromkeys(logical_views(kind) if meshes is None else meshes))
    costs = {method: MethodCosts(method, source, options.intra) for method in methods}
    last = len(source.classes) - 1

    def tried() -> Iterator[Candidate | Refused]:
        for method in methods:
            for mesh in meshes:
                for b in counts(options):
                    ways = variants(kind, (mesh,), cluster, options)
                    label = _label(method, mesh, b)
                    report(label)

                    def run(
                        way: Variant, first: int, last: int, method: str = method, b: int = b
                    ) -> Chunk | None:
                        return costs[method].run(way, b, first, last)

                    found = partial(_candidate, label, kind, ways, run, last, b, options)
                    yield separated(label, found)

    return best_of(name, tried(), cluster, memory_of(kind, options))


def heuristic(
    source: LayerSource, cluster: Cluster, options: SearchOptions, report: Report = _silent
) -> BaselineResult:
    """The largest dim of every input split, the rest by propagation through the whole step.

    Source: docs/facts.md section 6, the ablation of figure 8.
    """
    kind = whole(cluster)
    last = len(source.classes) - 1

    def tried() -> Iterator[Candidate | Refused]:
        for mesh in logical_views(kind):
            for b in counts(options):
                label = _label("Heuristic", mesh, b)
                report(label)
                # Propagation knows no price of memory: one of each rematerialisation is enough.
                ways = variants(kind, (mesh,), cluster, options)
                by_remat = tuple({way.remat: way for way in ways}.values())

                def run(way: Variant, first: int, last: int, b: int = b) -> Chunk | None:
                    return _propagated(source, way, b, first, last, options)

                found = partial(_candidate, label, kind, by_remat, run, last, b, options)
                yield separated(label, found)

    return best_of("Heuristic", tried(), cluster, memory_of(kind, options))


def _propagated(
    source: LayerSource,
    way: Variant,
    num_microbatches: int,
    first: int,
    last: int,
    options: SearchOptions,
) -> Chunk | None:
    """Layers planned as one graph by sharding propagation."""
    piece = source.graph(first, last, num_microbatches, way.remat)
    try:
        found = plan_baseline("Heuristic", piece.graph, way.mesh, piece.batch_dims, options.intra)
    except InfeasibleError:
        return None
    parts = regions(piece.graph)
    once_s = step_time_s(piece.graph, found.decision, way.mesh, parts=parts[:1])
    loop_s = step_time_s(piece.graph, found.decision, way.mesh, parts=parts[1:])
    loop_s += piece.num_microbatches * again_s(piece, found.decision, way.mesh)
    memory = footprint(piece, found.decision, way.mesh)
    forward_s, backward_s = pass_seconds(piece, found.decision, way.mesh, loop_s)
    return Chunk(
        forward_s=forward_s,
        backward_s=backward_s,
        once_s=once_s,
        resident_bytes=memory.resident_bytes,
        microbatch_bytes=memory.microbatch_bytes,
        temporary_bytes=memory.temporary_bytes,
    )


def intra_op_only(
    source: LayerSource, cluster: Cluster, options: SearchOptions, report: Report = _silent
) -> BaselineResult:
    """One stage, planned freely."""
    return one_mesh("intra-op only", (INTRA_OP,), source, cluster, options, report)


def data_parallel(
    source: LayerSource, cluster: Cluster, options: SearchOptions, report: Report = _silent
) -> BaselineResult:
    """Replicas whose gradients are all-reduced."""
    return one_mesh("data parallel", ("DataParallel",), source, cluster, options, report)


def zero2(
    source: LayerSource, cluster: Cluster, options: SearchOptions, report: Report = _silent
) -> BaselineResult:
    """Data parallel with optimizer state and gradients split."""
    return one_mesh("ZeRO-2", ("Zero2",), source, cluster, options, report)


def zero3(
    source: LayerSource, cluster: Cluster, options: SearchOptions, report: Report = _silent
) -> BaselineResult:
    """Data parallel with parameters split too."""
    return one_mesh("ZeRO-3", ("Zero3",), source, cluster, options, report)


def deepspeed(
    source: LayerSource, cluster: Cluster, options: SearchOptions, report: Report = _silent
) -> BaselineResult:
    """Expert parallelism and ZeRO, no pipeline.

    Source: Alpa section 8.1 (the baseline of figure 7b).
    """
    methods = ("ExpertZero2", "ExpertZero3")
    kind = whole(cluster)
    # Experts are divided over one axis where they are no multiple of the devices.
    meshes = (*kind.logical_meshes(2), kind.mesh((kind.num_devices,)))
    return one_mesh("DeepSpeed", methods, source, cluster, options, report, meshes=meshes)


def _label(method: str, mesh: LogicalMesh, num_microbatches: int) -> str:
    return f"{method} on {'x'.join(map(str, mesh.sizes))} B={num_microbatches}"


def _candidate(
    label: str,
    kind: SubmeshKind,
    ways: Sequence[Variant],
    run: Callable[[Variant, int, int], Chunk | None],
    last: int,
    num_microbatches: int,
    options: SearchOptions,
) -> Candidate | Refused:
    return fixed_stages(
        label,
        kind,
        ((0, last),),
        ways,
        run,
        (),
        num_microbatches=num_microbatches,
        schedule=ONE_F_ONE_B,
        memory_bytes=memory_of(kind, options),
    )
