"""Stages that a rule has fixed: only what the backward pass computes again is chosen for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from evaluation.baselines.restricted_stages import with_cuts
from evaluation.baselines.result import Candidate, ChosenStage, Refused
from meshwise.baselines.pipelines.fixed_problem import ChunkCosts, fixed_problem
from meshwise.baselines.pipelines.simulated import SimulatedPipeline
from meshwise.cluster.submesh import SubmeshKind
from meshwise.errors import InfeasibleError, TraceError
from meshwise.inter.clustering.operator_clustering import Ranges
from meshwise.inter.cost_table.variant import Variant
from meshwise.schedules.pipeline_schedule import PipelineSchedule
from meshwise.simulate.chunks import Chunk


class RunPricer(Protocol):
    """Costs of runs of layers under a method."""

    def run(self, variant: Variant, num_microbatches: int, first: int, last: int) -> Chunk | None:
        """Return the cost of the layers `first` to `last`; None if they have no plan."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedStages:
    """Equal meshes with given chunks of layers.

    Attributes:
        label: The point of a grid that this is, in words.
        kind: What each mesh is.
        chunks: First and last layer of each chunk; with n meshes chunk k is on mesh k mod n.
        crossing_bytes: Bytes of one micro-batch that pass after each chunk but the last.
        num_microbatches: B.
        schedule: The schedule; its number of chunks a mesh divides the chunks.
        memory_bytes: Memory of one device, in bytes.
    """

    label: str
    kind: SubmeshKind
    chunks: Ranges
    crossing_bytes: Sequence[float]
    num_microbatches: int
    schedule: PipelineSchedule
    memory_bytes: float

    @property
    def num_meshes(self) -> int:
        """Number of meshes."""
        return len(self.chunks) // self.schedule.chunks

    def best(self, ways: Sequence[Variant], costs: RunPricer) -> Candidate | Refused:
        """Choose the best variant for each mesh.

        The first variant saves no memory and costs no time for it: where it fits, no other is
        asked.

        Args:
            ways: The variants, from the fastest that holds most.
            costs: Says what a run of layers costs under a variant.

        Returns:
            The stages, or why there are none; also where the step has not so many micro-batches.
        """
        known: list[tuple[Variant, ChunkCosts]] = []
        failure = ""
        for asked in (ways[:1], ways[1:]):
            try:
                for way in asked:
                    runs = [costs.run(way, self.num_microbatches, *c) for c in self.chunks]
                    known.append((way, runs))
                return self._chosen(known)
            except TraceError as error:
                return Refused(label=self.label, why=str(error))
            except InfeasibleError as error:
                failure = str(error)
        return Refused(label=self.label, why=failure)

    def _chosen(self, costs: Sequence[tuple[Variant, ChunkCosts]]) -> Candidate:
        """Choose among variants whose costs are known.

        Raises:
            InfeasibleError: a chunk has no plan, or does not fit.
        """
        count, width = self.num_meshes, self.schedule.chunks
        cuts = tuple((i * width, (i + 1) * width - 1) for i in range(count))
        problem = fixed_problem(
            self.chunks,
            [of_chunk for _, of_chunk in costs],
            self.kind,
            self.crossing_bytes,
            num_microbatches=self.num_microbatches,
            schedule=self.schedule,
            memory_bytes=self.memory_bytes,
        )
        plan = with_cuts(problem, cuts)
        chosen = [plan.stages[k % count].variant for k in range(len(self.chunks))]
        picked = [costs[v][1][k] for k, v in enumerate(chosen)]
        return Candidate(
            label=self.label,
            objective_s=plan.total_s,
            stages=tuple(
                ChosenStage(
                    first_layer=first,
                    last_layer=last,
                    submesh=self.kind.shape,
                    mesh=costs[v][0].mesh.sizes,
                    remat=costs[v][0].remat,
                )
                for (first, last), v in zip(self.chunks, chosen, strict=True)
            ),
            pipeline=SimulatedPipeline(
                chunks=tuple(c for c in picked if c is not None),
                crossing_bytes=tuple(self.crossing_bytes),
                meshes=(self.kind,) * count,
                num_microbatches=self.num_microbatches,
                schedule=self.schedule,
            ),
        )
