"""Megatron-LM, its grid searched exhaustively."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from evaluation.baselines.fixed_stages import FixedStages
from evaluation.baselines.grid_options import counts, crossing_bytes, memory_of, variants
from evaluation.baselines.megatron_grid import MegatronPoint, megatron_grid
from evaluation.baselines.result import BaselineResult, Candidate, Refused, best_of
from meshwise.baselines.pipelines.block_layers import body_of
from meshwise.baselines.pipelines.even_stages import chunk_ranges, stage_kind
from meshwise.baselines.pipelines.layer_costs import MethodCosts
from meshwise.cluster.spec import ClusterSpec
from meshwise.cluster.submesh import SubmeshKind
from meshwise.inter.cost_table.variant_costs import LayerSource
from meshwise.inter.search.search_space import SearchOptions
from meshwise.schedules.interleaved import Interleaved
from meshwise.schedules.one_f_one_b import ONE_F_ONE_B


def megatron_lm(
    source: LayerSource,
    cluster: ClusterSpec,
    options: SearchOptions,
    report: Callable[[str], object] = lambda _: None,
    *,
    largest_tensor_parallel: int | None = None,
) -> BaselineResult:
    """The best of (dp, tp, pp, B), distributed optimizer, interleaving, and rematerialisation.

    Args:
        source: The layers; the repeated ones are divided evenly.
        cluster: Equal hosts.
        options: Of the search: batch, micro-batches, memory options.
        report: Is told of progress.
        largest_tensor_parallel: No tp above it; by default any.

    Raises:
        ClusterError: hosts differ.
    """
    body = body_of(source.classes)
    points, refused = megatron_grid(
        cluster,
        body.num_periods,
        options.batch_size,
        counts(options),
        largest_tensor_parallel=largest_tensor_parallel,
    )
    costs = {
        name: MethodCosts(name, source, options.intra) for name in ("Megatron", "MegatronSharded")
    }

    def tried() -> Iterator[Candidate | Refused]:
        yield from refused
        for point in points:
            report(str(point))
            of_method = costs["MegatronSharded" if point.is_sharded else "Megatron"]
            yield megatron_candidate(point, source, cluster, options, of_method)

    return best_of("Megatron-LM", tried(), cluster, memory_of(_part(cluster, 1), options))


def _part(cluster: ClusterSpec, stages: int) -> SubmeshKind:
    kind = stage_kind(cluster, stages)
    assert kind is not None
    return kind


def megatron_candidate(
    point: MegatronPoint,
    source: LayerSource,
    cluster: ClusterSpec,
    options: SearchOptions,
    costs: MethodCosts,
) -> Candidate | Refused:
    """One point of the grid with the best memory options of its stages.

    Args:
        point: The point.
        source: The layers.
        cluster: Equal hosts.
        options: Of the search.
        costs: Layers planned as Megatron does, with or without the distributed optimizer.
    """
    kind = _part(cluster, point.stages)
    mesh = kind.mesh((point.data_parallel, point.tensor_parallel))
    chunks = chunk_ranges(body_of(source.classes), len(source.classes), point.stages * point.chunks)
    ways = variants(kind, (mesh,), cluster, options)
    b = point.num_microbatches
    stages = FixedStages(
        label=str(point),
        kind=kind,
        chunks=chunks,
        crossing_bytes=[crossing_bytes(source, last, b) for _, last in chunks[:-1]],
        num_microbatches=b,
        schedule=Interleaved(chunks=point.chunks) if point.chunks > 1 else ONE_F_ONE_B,
        memory_bytes=memory_of(kind, options),
    )
    return stages.best(ways, costs)
