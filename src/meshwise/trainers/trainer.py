"""What is searched for its fastest point: a space of points, and what a trainer says besides."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar

from meshwise.baselines.pipelines.layer_methods import LayerMethod
from meshwise.cluster.mesh import LogicalMesh
from meshwise.cluster.submesh import SubmeshKind
from meshwise.schedules.pipeline_schedule import PipelineSchedule
from meshwise.trainers.layer_axes import LayerAxes, Role
from meshwise.trainers.point import TrainerPoint
from meshwise.trainers.sizes import Sizes


class PointSpace(ABC):
    """Points of which the fastest is searched.

    Class attributes:
        name: By which a user asks for it.
        title: What messages call it.
        order: Axes of the devices of a stage, from the one whose neighbours are farthest apart.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    order: ClassVar[tuple[Role, ...]]

    @abstractmethod
    def points(self, sizes: Sizes) -> Iterator[TrainerPoint]:
        """Yield the points for a model on a cluster, all with `remat` none."""

    @abstractmethod
    def axes(self, point: TrainerPoint, sizes: Sizes) -> LayerMethod:
        """Return what the axes of `mesh` split in a layer."""

    @abstractmethod
    def schedule(self, point: TrainerPoint) -> PipelineSchedule:
        """Return the order in which stages run micro-batches."""

    def roles(self, point: TrainerPoint) -> tuple[Role, ...]:
        """Return the axes of a stage that have more than one device; at least one axis."""
        return tuple(r for r in self.order if getattr(point, r) > 1) or self.order[:1]

    def words(self, point: TrainerPoint) -> str:
        """Return what messages say of a point."""
        return str(point)

    def mesh(self, point: TrainerPoint, kind: SubmeshKind) -> LogicalMesh:
        """Return the devices of a stage with the axes `roles`.

        Args:
            point: The point.
            kind: The devices of a stage.
        """
        return kind.mesh(tuple(getattr(point, role) for role in self.roles(point)))


class Trainer(PointSpace):
    """A trainer that is not ours; its title has the version whose options are written.

    Class attributes:
        limits: Sentences: what its points leave out, and what runs otherwise than it is priced.
    """

    limits: ClassVar[tuple[str, ...]]

    @abstractmethod
    def axes(self, point: TrainerPoint, sizes: Sizes) -> LayerAxes:
        """Return what the axes of `mesh` split in a layer."""

    @abstractmethod
    def options(self, point: TrainerPoint, sizes: Sizes) -> dict[str, str]:
        """Return the options of a point: names and values; a switch has an empty value."""

    @abstractmethod
    def text(self, options: dict[str, str]) -> str:
        """Return options as they are written down for the trainer."""
