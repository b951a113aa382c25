"""Meshes, stages and micro-batches of pipelines with several stages a mesh.

All devices belong to equal meshes.  With attention whose keys may go round, a logical mesh whose
first axis has a device for each row of a micro-batch is tried too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from meshwise.cluster.mesh import LogicalMesh
from meshwise.cluster.spec import ClusterSpec
from meshwise.cluster.submesh import SubmeshKind
from meshwise.errors import PlanError
from meshwise.inter.cost_table.variant_costs import VariantCosts
from meshwise.inter.search.microbatch_counts import microbatch_counts
from meshwise.inter.search.search_space import SearchOptions, guessed_s, variants_of
from meshwise.intra.batch_loops import operator_paths
from meshwise.plan.stage import Remat
from meshwise.schedules.pipeline_schedule import PipelineSchedule
from meshwise.units import counted


@dataclass(frozen=True, kw_only=True)
class ChunkSpace:
    """What a search for pipelines with several stages a mesh tries.

    Attributes:
        cluster: Where they run; of equal hosts.
        options: What is searched; `num_stages` is of all meshes together.
        schedule: A schedule of several stages a mesh.
        costs: Of the layers.
    """

    cluster: ClusterSpec
    options: SearchOptions
    schedule: PipelineSchedule
    costs: VariantCosts

    def shapes(self) -> list[tuple[SubmeshKind, int, int]]:
        """Return meshes that fill the cluster, how many they are, and numbers of micro-batches.

        Raises:
            PlanError: no number of stages and micro-batches that is asked for is possible.
        """
        counts, schedule = microbatch_counts(self.options), self.schedule
        num_layers, num_devices = len(self.costs.source.classes), self.cluster.num_devices
        kinds = {
            num_devices // kind.num_devices: kind
            for kind in self.cluster.submesh_kinds()
            if num_devices % kind.num_devices == 0
        }
        kinds.pop(1, None)
        asked = self.options.num_stages
        stages = {n: [n * s.chunks for s in self.schedules(n)] for n in sorted(kinds)}
        found = [
            (kinds[n], n, count)
            for n, each in stages.items()
            if each and (asked is None or asked in each)
            for count in counts
            if schedule.allows(n, count)
        ]
        if not found:
            what = "pipeline" if asked is None else counted(asked, "stage")
            times = f"at least {schedule.chunks}" if schedule.any_chunks else schedule.chunks
            divides = ", by 2 or a divisor of a mesh's layers" if schedule.any_chunks else ""
            raise PlanError(
                f"schedule {schedule.name}: no {what} on {counted(num_devices, 'device')} of "
                f"{self.cluster.name} with {counted(num_layers, 'layer')}; stages must be {times} "
                "times as many as equal meshes "
                f"({', '.join(map(str, stages)) or 'there is one device only'}){divides}, "
                "micro-batches "
                f"({', '.join(map(str, counts))}) {schedule.microbatches_text}"
            )
        return found

    def schedules(self, num_meshes: int) -> list[PipelineSchedule]:
        """Return the schedule with each number of stages a mesh that is worth a try.

        They are those that divide the layers of a mesh, and the least number.

        Args:
            num_meshes: Number of meshes.
        """
        schedule, most = self.schedule, len(self.costs.source.classes) // num_meshes
        if not schedule.any_chunks:
            return [schedule] if schedule.chunks <= most else []
        counts = [v for v in range(2, most + 1) if v == schedule.chunks or most % v == 0]
        return [replace(schedule, chunks=v) for v in counts]

    def views(self, kind: SubmeshKind, count: int) -> Iterator[tuple[LogicalMesh, Remat]]:
        """Yield the logical meshes to try, each with what the backward pass computes again."""
        for variant in variants_of(kind, self.options, self.guessed_s(kind)):
            yield variant.mesh, variant.remat
        mesh = self.rows_first(kind, count, 1)
        if mesh is not None:
            for remat in self.options.remats:
                yield mesh, remat

    def rows_first(self, kind: SubmeshKind, count: int, width: int) -> LogicalMesh | None:
        """Return a mesh whose first axis has a device for each row; None if it is not worth a try.

        Args:
            kind: The devices.
            count: Number of micro-batches.
            width: Of the third axis; 1 for none.
        """
        if not self.options.intra.rows_first or kind.num_hosts == 1 or not self._has_rings:
            return None
        rows = self.options.batch_size // count
        rest = kind.num_devices // (rows * width)
        if rows == 1 or rest <= 1 or rows * rest * width != kind.num_devices:
            return None
        return kind.mesh((rows, rest) if width == 1 else (rows, rest, width))

    @cached_property
    def _has_rings(self) -> bool:
        """Whether keys of attention may go round in some layer."""
        costs, count = self.costs, microbatch_counts(self.options)[0]
        pieces = [costs.graph(c, self.options.remats[0], count) for c in costs.source.classes]
        graphs = {id(piece): piece.graph for piece in pieces}.values()
        return any(op.rule.ring is not None for graph in graphs for _, op in operator_paths(graph))

    def guessed_s(self, kind: SubmeshKind) -> float:
        """Return a guess of what a step takes, by which memory is priced."""
        return guessed_s([kind], self.cluster, self.options)
