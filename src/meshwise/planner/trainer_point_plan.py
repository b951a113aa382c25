"""The point of a trainer as a plan of ours, so that the free plan need not be the slower one.

The meshes, micro-batches, schedule and rematerialisation are the point's, and each axis may split
what the trainer splits along it; layers are cut for the least slowest stage, and layouts at cuts
are free.  Stages may have three axes, of which the free search tries few.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from meshwise.baselines.pipelines.even_stages import stage_kind
from meshwise.cluster.mesh import LogicalMesh
from meshwise.cluster.spec import ClusterSpec
from meshwise.errors import InfeasibleError
from meshwise.inter.cost_table.variant_costs import VariantCosts
from meshwise.inter.search.chunked_pipeline import (
    ChunkedPipeline,
    Shape,
    chunked_pipeline,
    memory_bytes,
)
from meshwise.inter.search.finishing import finished
from meshwise.inter.search.price_of_memory import fitting
from meshwise.inter.search.search import stage_decisions
from meshwise.inter.search.search_space import SearchOptions, guessed_s, priced_way
from meshwise.intra.options import IntraOptions
from meshwise.pieces.piece import PieceGraph
from meshwise.planner.planned_pipeline import PlannedPipeline
from meshwise.schedules.registry import tables
from meshwise.trace.layers.layering import Layering
from meshwise.trainers.layer_axes import LayerAxes
from meshwise.trainers.point import TrainerPoint
from meshwise.trainers.sizes import Sizes
from meshwise.trainers.trainer import Trainer

# A pipeline may need more memory than the search counts.  Then it is planned again, so often in
# all at most, and may hold this part of what the last one held.
_TRIES, _LESS = 3, 0.95


class _TrainerCosts(VariantCosts):
    """Plans layers as a trainer can."""

    is_shareable = False

    def __init__(self, layers: Layering, options: IntraOptions, axes: LayerAxes) -> None:
        super().__init__(layers, options)
        self._axes = axes

    def restricted(self, piece: PieceGraph, mesh: LogicalMesh) -> tuple[PieceGraph, IntraOptions]:
        """Return a layer, and options that leave what the trainer can express."""
        return piece, replace(self.options, restriction=self._axes(piece, mesh))


@dataclass(frozen=True, slots=True, kw_only=True)
class PointPlanner:
    """Makes a plan of a trainer's point.

    Attributes:
        trainer: The trainer.
        layers: The layers, cut where the model repeats.
        cluster: Where they run; of equal hosts.
        options: What is searched.
    """

    trainer: Trainer
    layers: Layering
    cluster: ClusterSpec
    options: SearchOptions

    def plan(self, point: TrainerPoint, sizes: Sizes) -> PlannedPipeline | None:
        """Return the plan; None if what was asked excludes it, or nothing fits.

        Args:
            point: The point.
            sizes: Numbers of the model and the cluster.
        """
        options = self.options
        schedule = self.trainer.schedule(point)
        kind = stage_kind(self.cluster, point.pipeline)
        stages = point.pipeline * point.chunks
        is_asked = schedule.name in {s.name for s in options.schedules}
        if kind is None or not is_asked or schedule.name not in tables():
            return None
        if options.num_stages not in (None, stages):
            return None
        costs = _TrainerCosts(self.layers, options.intra, self.trainer.axes(point, sizes))
        shape = Shape(
            kind, point.pipeline, point.num_microbatches, self.cluster.num_hosts, schedule
        )
        mesh = self.trainer.mesh(point, kind)
        second = guessed_s([kind], self.cluster, options)

        @cache
        def planned(price: float) -> ChunkedPipeline | None:
            way = priced_way(kind, mesh, point.remat, price, options, second)
            return chunked_pipeline(shape, way, costs)

        room = float(memory_bytes(kind, options))
        for _ in range(_TRIES):
            made = fitting(planned, room)
            if made is None:
                break
            space = f"plans of {self.trainer.title} with {point}"
            found = made.found(options, space, {point.num_microbatches: made.time.total_s})
            try:
                plan, timeline = finished(
                    self.layers,
                    self.cluster,
                    found,
                    costs,
                    batch_size=self.layers.batch_size,
                    step_flop=options.step_flop,
                    transfers=options.transfers,
                    memory_bytes=options.memory_bytes,
                    tied=self.layers.tied_names(),
                    cuts=self.layers.ranges,
                )
            except InfeasibleError:
                room = made.peak_bytes * _LESS
                continue
            plan = replace(plan, step_time_s=timeline.step_time_s, gap=0.0)
            decisions = stage_decisions(found, costs)
            return PlannedPipeline(
                layers=self.layers, plan=plan, timeline=timeline, decisions=decisions
            )
        return None
