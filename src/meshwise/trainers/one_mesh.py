"""Methods of one mesh as spaces of points: all devices split the rows, and there is one stage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

from meshwise.cluster.mesh import LogicalMesh
from meshwise.cluster.submesh import SubmeshKind
from meshwise.schedules.one_f_one_b import ONE_F_ONE_B
from meshwise.schedules.pipeline_schedule import PipelineSchedule
from meshwise.trainers.grid import with_microbatches
from meshwise.trainers.layer_axes import Role
from meshwise.trainers.point import TrainerPoint
from meshwise.trainers.sizes import Sizes
from meshwise.trainers.trainer import PointSpace


class OneMesh(PointSpace):
    """A method on one logical mesh of all devices."""

    method: ClassVar[str]

    def __init__(self, mesh: LogicalMesh) -> None:
        """Take the mesh; its axes change what collectives cost, not what is split."""
        self._mesh = mesh

    def points(self, sizes: Sizes) -> Iterator[TrainerPoint]:
        """Yield the mesh with each number of micro-batches."""
        (role,) = self.order
        yield from with_microbatches(replace(TrainerPoint(), **{role: sizes.num_devices}), sizes)

    def axes(self, point: TrainerPoint, sizes: Sizes) -> str:
        """Return the method, which says for any mesh what is split."""
        return self.method

    def schedule(self, point: TrainerPoint) -> PipelineSchedule:
        """Return 1F1B, which one stage runs as any other schedule."""
        return ONE_F_ONE_B

    def words(self, point: TrainerPoint) -> str:
        """Return the mesh, micro-batches and remat: the roles of axes only say what all split."""
        mesh = "x".join(map(str, self._mesh.sizes))
        return f"mesh {mesh}, {replace(point, **{self.order[0]: 1})}"

    def mesh(self, point: TrainerPoint, kind: SubmeshKind) -> LogicalMesh:
        """Return the mesh."""
        return self._mesh


class DataParallel(OneMesh):
    """State on every device, gradients all-reduced."""

    name: ClassVar[str] = "data-parallel"
    title: ClassVar[str] = "data parallel"
    order: ClassVar[tuple[Role, ...]] = ("data",)
    method: ClassVar[str] = "DataParallel"


class Zero2(OneMesh):
    """Optimizer state and gradients split."""

    name: ClassVar[str] = "zero-2"
    title: ClassVar[str] = "ZeRO-2"
    order: ClassVar[tuple[Role, ...]] = ("fsdp",)
    method: ClassVar[str] = "Zero2"


class Zero3(OneMesh):
    """Parameters split too."""

    name: ClassVar[str] = "zero-3"
    title: ClassVar[str] = "ZeRO-3"
    order: ClassVar[tuple[Role, ...]] = ("fsdp",)
    method: ClassVar[str] = "Zero3"


ONE_MESH: tuple[type[OneMesh], ...] = (DataParallel, Zero2, Zero3)
