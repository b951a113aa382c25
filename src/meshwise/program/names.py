"""Names of the values that the executables of a pipeline take and make."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from meshwise.graph.layout import Layout
from meshwise.schedules.schedule import BACKWARD, FORWARD, WEIGHT, Kind


class Name(NamedTuple):
    """A value at the border of an executable.

    Attributes:
        kind: `argument` or `result` of the step; `rows` of an argument that is batch data; `index`
            of the micro-batch; `activation`; `cotangent`; `gradient` of a tied parameter that one
            layer sends to another; `value` of the loss; `sent`, to be joined by the update;
            `shared`, joined by it.  All others belong to one layer: `whole`, `sum`, `kept`,
            `border`, `entering`, `inward`, `joined` (the sum of the cotangents of what leaves the
            layer once a step); `delayed` and `total` (the sum of the cotangents of what left),
            which the gradients of weights have of those of activations.
        what: Which: a number, or a variable of the forward pass or the update.
        layout: How it lies.
    """

    kind: str
    what: Any
    layout: Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramSpec:
    """An executable as the instructions see it.

    Attributes:
        number: In the table of executables.
        label: What it does, as `forward of layer 3`.
        inputs: What it takes.
        outputs: What it makes; several may be one value.
        places: For each output its place among the results.
        donated: Positions of inputs that it overwrites.
    """

    number: int
    label: str
    inputs: tuple[Name, ...]
    outputs: tuple[Name, ...]
    places: tuple[int, ...]
    donated: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """The executables of one layer.

    Attributes:
        stage: Number of the stage that runs them.
        before: Once a step, first.
        forward: For each micro-batch.
        backward: For each micro-batch; only the gradients of activations where `weights` follows.
        weights: For each micro-batch, the gradients of weights; None where `backward` makes them.
        once: After the last micro-batch: values of the loss, what is sent in each phase, update.
    """

    stage: int
    before: ProgramSpec
    forward: ProgramSpec
    backward: ProgramSpec
    once: tuple[ProgramSpec, ...]
    weights: ProgramSpec | None = None

    def of_kind(self, kind: Kind) -> ProgramSpec | None:
        """What runs for a task of the schedule."""
        return {FORWARD: self.forward, BACKWARD: self.backward, WEIGHT: self.weights}[kind]

    @property
    def passes(self) -> tuple[ProgramSpec, ...]:
        """Those of each micro-batch."""
        late = () if self.weights is None else (self.weights,)
        return (self.forward, self.backward, *late)

    @property
    def programs(self) -> tuple[ProgramSpec, ...]:
        """All of them."""
        return (self.before, *self.passes, *self.once)
