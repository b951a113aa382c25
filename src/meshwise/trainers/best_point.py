"""The fastest point of a trainer, or of another space of points, that fits.

Points are planned and simulated in the order of their lower bounds.  Left out are points whose
stages would be meshes of more axes than `views.MAX_AXES`: there are too many layouts on them.
Points that differ in micro-batches and chunks alone share a bound: it comes from their layers,
planned with the fewest micro-batches, nothing recomputed and memory nearly free.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from meshwise.baselines.pipelines.layer_pieces import LayerPieces
from meshwise.cluster.spec import ClusterSpec
from meshwise.cluster.views import MAX_AXES
from meshwise.errors import InfeasibleError, TraceError
from meshwise.inter.cost_table.variant_costs import LayerSource
from meshwise.inter.search.search_space import DEAREST, PRICES, SearchOptions
from meshwise.plan.stage import REMATS
from meshwise.simulate.timeline import Timeline
from meshwise.trainers.point import TrainerPoint
from meshwise.trainers.priced_points import PointPrices, PricedPoint, least_s
from meshwise.trainers.sizes import Sizes, sizes_of
from meshwise.trainers.trainer import PointSpace
from meshwise.units import bytes_text, counted

_Planned: TypeAlias = tuple[PricedPoint, Timeline]

# Copies whose parameters and state take more than this times the memory do not fit at any price.
_HOPELESS = 1.5


class NothingFitsError(InfeasibleError):
    """No point fits into memory.

    Attributes:
        num_bytes: What a device needs at least at the point that needs least.
    """

    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BestPoint:
    """The fastest point that fits.

    Attributes:
        point: The point.
        sizes: Numbers of the model and the cluster.
        formula_s: Seconds of a step by the formula of stage construction.
        timeline: A simulated step.
        collective_s: For each stage the seconds of a step in collectives.
        num_points: Points of the trainer for this model and cluster; points that differ only in
            remat count once.
        num_planned: How many of them were planned; the others are slower by their bounds, or larger
            than one that does not fit.
    """

    point: TrainerPoint
    sizes: Sizes
    formula_s: float
    timeline: Timeline
    collective_s: tuple[float, ...]
    num_points: int
    num_planned: int


def best_point(
    trainer: PointSpace,
    source: LayerSource,
    cluster: ClusterSpec,
    options: SearchOptions,
    report: Callable[[str], object] = lambda _: None,
    pieces: LayerPieces | None = None,
    below_s: float = math.inf,
) -> BestPoint:
    """Return the point of a trainer that is fastest by simulation among those that fit.

    Args:
        trainer: The trainer, or another space of points.
        source: The layers of the model, cut into its blocks.
        cluster: Equal hosts.
        options: Batch, micro-batches, memory.
        report: Is told of progress.
        pieces: The graphs of the layers, which searches of several spaces may share.
        below_s: Seconds of a step; points that take no less are not looked for.

    Raises:
        ClusterError: hosts differ.
        InfeasibleError: there is no point, or none takes less than `below_s`.
        NothingFitsError: none fits; the text names the nearest.
        PlanError: a number of micro-batches does not divide the batch.
    """
    sizes = sizes_of(source, cluster, options)
    prices = PointPrices(
        trainer=trainer,
        source=source,
        cluster=cluster,
        options=options,
        sizes=sizes,
        pieces=LayerPieces(source) if pieces is None else pieces,
    )
    return _Search(prices=prices, report=report, below_s=below_s).best()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Search:
    """A search over the points of a trainer.

    Attributes:
        prices: Prices points.
        report: Is told of progress.
        below_s: Seconds of a step; points that take no less are not looked for.
    """

    prices: PointPrices
    report: Callable[[str], object]
    below_s: float

    def best(self) -> BestPoint:
        """Return the fastest point that fits.

        Raises:
            InfeasibleError: there is none.
        """
        sizes, trainer = self.prices.sizes, self.prices.trainer
        points = [p for p in trainer.points(sizes) if len(trainer.roles(p)) <= MAX_AXES]
        if not points:
            raise InfeasibleError(
                f"{trainer.title} has no setting for {sizes.num_blocks} equal layers and a batch "
                f"of {sizes.batch_size} on {counted(sizes.num_devices, 'device')}: stages take "
                "equally many layers, and copies whole rows; change the batch, or the devices"
            )
        order = itertools.count()
        # A bound and a point, or the time of a step and what was planned for it.
        queue: list[tuple[float, int, int, TrainerPoint, _Planned | None]] = []
        needs: list[tuple[float, int, TrainerPoint]] = []
        for priced, point in self._bounded(points):
            state_bytes = self.prices.state_bytes(priced)
            if point.fsdp == 1 and state_bytes > _HOPELESS * self.prices.memory_bytes:
                needs.append((state_bytes, next(order), point))
            else:
                bound_s, count = least_s(priced, point.num_microbatches), point.num_microbatches
                heapq.heappush(queue, (bound_s, -count, next(order), point, None))
        planned: set[TrainerPoint] = set()
        refused: dict[tuple[TrainerPoint, float], int] = {}
        while queue:
            least_step_s, _, _, point, found = heapq.heappop(queue)
            if least_step_s >= self.below_s:
                raise InfeasibleError(
                    f"{trainer.title}: no point takes less than {self.below_s:.4g} s a step"
                )
            if found is not None:
                priced, timeline = found
                return BestPoint(
                    point=priced.point,
                    sizes=sizes,
                    formula_s=self.prices.formula_s(priced),
                    timeline=timeline,
                    collective_s=tuple(
                        sum(chunk.collective_s for chunk in priced.on_stage(stage))
                        for stage in range(priced.point.pipeline)
                    ),
                    num_points=len(points),
                    num_planned=len(planned),
                )
            for asked, price in self._ways(point):
                # With fewer micro-batches, each of which is larger, it fits no better.
                key = (replace(asked, num_microbatches=1), price)
                if asked.num_microbatches <= refused.get(key, 0):
                    continue
                self.report(f"{trainer.name}: {trainer.words(asked)}")
                planned.add(point)
                priced = self._priced(asked, price)
                if priced is None:
                    continue
                fitting = self._fitting(priced)
                if isinstance(fitting, Timeline):
                    step_s, count = fitting.step_time_s, -point.num_microbatches
                    heapq.heappush(queue, (step_s, count, next(order), point, (priced, fitting)))
                    break
                refused[key] = asked.num_microbatches
                needs.append((fitting, next(order), asked))
        raise self._nothing_fits(len(points), needs)

    def _bounded(self, points: list[TrainerPoint]) -> Iterator[tuple[PricedPoint, TrainerPoint]]:
        """Yield each point with what it shares a bound with: the fewest micro-batches, planned."""
        groups: defaultdict[TrainerPoint, list[TrainerPoint]] = defaultdict(list)
        for point in points:
            groups[replace(point, num_microbatches=1, chunks=1)].append(point)
        for n, group in enumerate(groups.values()):
            self.report(f"{self.prices.trainer.name}: bounds of mesh {n + 1} of {len(groups)}")
            fewest = min(point.num_microbatches for point in group)
            for point in group:
                priced = self._priced(replace(point, num_microbatches=fewest), PRICES[0])
                if priced is not None:
                    yield priced, point

    def _ways(self, point: TrainerPoint) -> Iterator[tuple[TrainerPoint, float]]:
        """Yield the point with more and more recomputed, then with memory dear, and its price."""
        # At low prices parameters that are split are gathered once a step and kept.
        low, high = (PRICES[-1], DEAREST) if point.fsdp > 1 else PRICES
        remats = sorted(self.prices.options.remats, key=REMATS.index)
        for remat in remats:
            yield replace(point, remat=remat), low
        yield replace(point, remat=remats[-1]), high

    def _priced(self, point: TrainerPoint, price: float) -> PricedPoint | None:
        try:
            return self.prices.priced(point, price)
        except (InfeasibleError, TraceError) as error:
            trainer = self.prices.trainer
            self.report(f"{trainer.name}: {trainer.words(point)}: {error}")
            return None

    def _fitting(self, priced: PricedPoint) -> Timeline | float:
        """Return a simulated step if it fits, else the bytes that a device needs."""
        need = self.prices.needed_bytes(priced)
        if need > self.prices.memory_bytes:
            return need
        timeline = self.prices.simulated(priced)
        peak = max(timeline.peak_bytes)
        return timeline if peak <= self.prices.memory_bytes else float(peak)

    def _nothing_fits(
        self, count: int, needs: list[tuple[float, int, TrainerPoint]]
    ) -> InfeasibleError:
        trainer, has = self.prices.trainer, self.prices.memory_bytes
        title = trainer.title
        if not needs:
            return InfeasibleError(
                f"{title}: none of {counted(count, 'point')} has a plan for these layers"
            )
        need, _, nearest = min(needs)
        error = NothingFitsError(
            f"{title}: none of {counted(count, 'point')} fits into the memory of a device, "
            f"{bytes_text(has)}; nearest is {trainer.words(nearest)}, which needs at least "
            f"{bytes_text(need)}, {bytes_text(need - has)} too much; take more devices, or a "
            "smaller batch"
        )
        error.num_bytes = math.ceil(need)
        return error
