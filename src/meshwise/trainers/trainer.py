"""What every trainer answers: its points, how they run, and the options that say so."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar

from meshwise.schedules.pipeline_schedule import PipelineSchedule
from meshwise.trainers.layer_axes import LayerAxes, Role
from meshwise.trainers.point import TrainerPoint
from meshwise.trainers.sizes import Sizes


class Trainer(ABC):
    """A trainer that is not ours.

    Class attributes:
        name: By which a user asks for it.
        title: Its name and the version whose options are written.
        order: Axes of the devices of a stage, from the one whose neighbours are farthest apart.
        limits: Sentences: what its points leave out, and what runs otherwise than it is priced.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    order: ClassVar[tuple[Role, ...]]
    limits: ClassVar[tuple[str, ...]]

    @abstractmethod
    def points(self, sizes: Sizes) -> Iterator[TrainerPoint]:
        """Yield the points for a model on a cluster, all with `remat` none."""

    @abstractmethod
    def axes(self, point: TrainerPoint, sizes: Sizes) -> LayerAxes:
        """Return what the axes of `mesh_shape` split in a layer."""

    @abstractmethod
    def schedule(self, point: TrainerPoint) -> PipelineSchedule:
        """Return the order in which stages run micro-batches."""

    @abstractmethod
    def options(self, point: TrainerPoint, sizes: Sizes) -> dict[str, str]:
        """Return the options of a point: names and values; a switch has an empty value."""

    @abstractmethod
    def text(self, options: dict[str, str]) -> str:
        """Return options as they are written down for the trainer."""

    def roles(self, point: TrainerPoint) -> tuple[Role, ...]:
        """Return the axes of a stage that have more than one device; at least one axis."""
        return tuple(r for r in self.order if getattr(point, r) > 1) or self.order[:1]

    def mesh_shape(self, point: TrainerPoint) -> tuple[int, ...]:
        """Return the sizes of `roles`."""
        return tuple(getattr(point, role) for role in self.roles(point))
