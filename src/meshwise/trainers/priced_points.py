"""The seconds and bytes of a point of a trainer, by the planner's costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from meshwise.baselines.pipelines.block_layers import body_of
from meshwise.baselines.pipelines.even_stages import chunk_ranges, stage_kind
from meshwise.baselines.pipelines.fixed_problem import fixed_problem
from meshwise.baselines.pipelines.layer_costs import MethodCosts
from meshwise.baselines.pipelines.layer_methods import LayerMethod
from meshwise.baselines.pipelines.layer_pieces import LayerPieces
from meshwise.baselines.pipelines.simulated import SimulatedPipeline, simulate
from meshwise.cluster.spec import ClusterSpec
from meshwise.cluster.submesh import SubmeshKind
from meshwise.inter.clustering.operator_clustering import Ranges
from meshwise.inter.cost_table.variant import Variant
from meshwise.inter.cost_table.variant_costs import LayerSource
from meshwise.inter.layer_cost.state_costs import BytePrice
from meshwise.inter.search.search_space import SearchOptions, guessed_s
from meshwise.inter.stages.objective import step_time
from meshwise.inter.stages.stage_problem import StageSpan
from meshwise.intra.evaluators import Evaluators
from meshwise.simulate.chunks import Chunk
from meshwise.simulate.timeline import Timeline
from meshwise.trainers.point import TrainerPoint
from meshwise.trainers.sizes import Sizes
from meshwise.trainers.trainer import PointSpace

_IN_FLIGHT = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedPoint:
    """A point, planned.

    Attributes:
        point: The point.
        chunks: Costs of its runs of layers; with n stages run k is on stage k mod n.
        ranges: First and last layer of each run.
        kind: The devices of each stage.
    """

    point: TrainerPoint
    chunks: tuple[Chunk, ...]
    ranges: Ranges
    kind: SubmeshKind

    def on_stage(self, stage: int) -> tuple[Chunk, ...]:
        """Return the costs of the runs of layers of a stage."""
        return self.chunks[stage :: self.point.pipeline]


@dataclass(frozen=True, slots=True, kw_only=True)
class PointPrices:
    """Prices points; what it learns of layers serves other points.

    Attributes:
        trainer: The space of the points.
        source: The layers of the model, cut into its blocks.
        cluster: Equal hosts.
        options: Options of the search.
        sizes: Numbers of the model and the cluster.
        pieces: The graphs of the layers, which several spaces may share.
    """

    trainer: PointSpace
    source: LayerSource
    cluster: ClusterSpec
    options: SearchOptions
    sizes: Sizes
    pieces: LayerPieces
    _evaluators: Evaluators = field(
        default_factory=Evaluators, init=False, repr=False, compare=False
    )
    _costs: dict[LayerMethod, MethodCosts] = field(
        default_factory=dict[LayerMethod, MethodCosts], init=False, repr=False, compare=False
    )

    @property
    def memory_bytes(self) -> float:
        """Memory of one device."""
        return self.options.memory_bytes or self.cluster.host.device.memory_bytes

    def priced(self, point: TrainerPoint, price: float) -> PricedPoint | None:
        """Plan the layers of a point.

        Args:
            point: The point.
            price: Price of all memory of a device, in guessed step times.

        Returns:
            The point with its costs; None if a layer has no plan.

        Raises:
            TraceError: the step cannot be cut into so many micro-batches.
        """
        kind = stage_kind(self.cluster, point.pipeline)
        assert kind is not None
        axes = self.trainer.axes(point, self.sizes)
        if axes not in self._costs:
            intra = self.options.intra
            self._costs[axes] = MethodCosts(axes, self.source, intra, self._evaluators, self.pieces)
        second = guessed_s([kind], self.cluster, self.options)
        bytes_price = BytePrice(
            seconds_per_byte=price * second / self.memory_bytes, in_flight=_IN_FLIGHT
        )
        way = Variant(mesh=self.trainer.mesh(point, kind), remat=point.remat, price=bytes_price)
        classes = self.source.classes
        ranges = chunk_ranges(body_of(classes), len(classes), point.pipeline * point.chunks)
        found = [self._costs[axes].run(way, point.num_microbatches, *run) for run in ranges]
        chunks = tuple(c for c in found if c is not None)
        if len(chunks) < len(found):
            return None
        return PricedPoint(point=point, chunks=chunks, ranges=ranges, kind=kind)

    def formula_s(self, priced: PricedPoint) -> float:
        """Return the seconds of a step by the formula of stage construction."""
        problem = fixed_problem(
            priced.ranges,
            [priced.chunks],
            priced.kind,
            self._crossing_bytes(priced),
            num_microbatches=priced.point.num_microbatches,
            schedule=self.trainer.schedule(priced.point),
            memory_bytes=self.memory_bytes,
        )
        width = priced.point.chunks
        spans = [
            StageSpan(
                first_layer=k * width,
                last_layer=(k + 1) * width - 1,
                submesh=0,
                variant=0,
                first_device=k * priced.kind.num_devices,
            )
            for k in range(priced.point.pipeline)
        ]
        return step_time(problem, spans).total_s

    def simulated(self, priced: PricedPoint) -> Timeline:
        """Return a simulated step."""
        pipeline = SimulatedPipeline(
            chunks=priced.chunks,
            crossing_bytes=tuple(self._crossing_bytes(priced)),
            meshes=(priced.kind,) * priced.point.pipeline,
            num_microbatches=priced.point.num_microbatches,
            schedule=self.trainer.schedule(priced.point),
        )
        return simulate(pipeline, self.cluster)

    def state_bytes(self, priced: PricedPoint) -> float:
        """Return what a device holds all the time: parameters, gradients, optimizer state."""
        stages = map(priced.on_stage, range(priced.point.pipeline))
        return max(sum(c.resident_bytes for c in chunks) for chunks in stages)

    def needed_bytes(self, priced: PricedPoint) -> float:
        """Return the most that a device holds, without simulation."""
        point, schedule = priced.point, self.trainer.schedule(priced.point)
        count = point.pipeline
        return max(
            sum(c.resident_bytes for c in chunks)
            + schedule.in_flight(count - stage, count, point.num_microbatches)
            * sum(c.microbatch_bytes for c in chunks)
            + max(c.temporary_bytes for c in chunks)
            for stage, chunks in enumerate(map(priced.on_stage, range(count)))
        )

    def _crossing_bytes(self, priced: PricedPoint) -> Sequence[float]:
        count = priced.point.num_microbatches
        return [self.source.crossing_bytes(last) / count for _, last in priced.ranges[:-1]]


def least_s(priced: PricedPoint, num_microbatches: int) -> float:
    """Return a lower bound of the seconds of a step, also with more micro-batches than were priced.

    All micro-batches together take no less if there are more of them.  A stage does its own work.
    A micro-batch passes the first run of layers of all stages before it both ways besides, and then
    the first stage ends its step.

    Args:
        priced: The point.
        num_microbatches: As many as were priced, or more.
    """
    bounds: list[float] = []
    waits_s = 0.0
    for stage in range(priced.point.pipeline):
        chunks = priced.on_stage(stage)
        work = [c.microbatch_s * priced.point.num_microbatches for c in chunks]
        bounds.append(sum(work) + max(c.once_s for c in chunks))
        bounds.append(waits_s + sum(work) + priced.chunks[0].once_s)
        waits_s += work[0] / num_microbatches
    return max(bounds)
