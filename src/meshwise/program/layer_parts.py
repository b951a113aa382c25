"""What a layer consists of, whatever its programs are: planned, lowered, compiled or named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from meshwise.schedules.schedule import BACKWARD, FORWARD, WEIGHT, Kind

# Names of the programs that run for each micro-batch.
PASSES = ("forward", "backward", "weights")

_Part = TypeVar("_Part")
_Other = TypeVar("_Other")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerParts(Generic[_Part]):
    """The programs of one layer, in one of their forms.

    Attributes:
        before: The program that runs first, once a step.
        forward: The forward pass of a micro-batch.
        backward: The backward pass of a micro-batch; where `weights` follows, only its gradients
            of activations.
        weights: The gradients of weights of a micro-batch; None where `backward` makes them, and
            for a layer without any.
        once: Programs after the last micro-batch: values of the loss and gradients for other
            layers, what is sent in each phase of the update, the update.
    """

    before: _Part
    forward: _Part
    backward: _Part
    once: tuple[_Part, ...]
    weights: _Part | None = None

    @property
    def passes(self) -> tuple[_Part, ...]:
        """The programs that run for each micro-batch."""
        late = () if self.weights is None else (self.weights,)
        return (self.forward, self.backward, *late)

    @property
    def programs(self) -> tuple[_Part, ...]:
        """All programs; each comes after those that make what it takes."""
        return (self.before, *self.passes, *self.once)

    def of_kind(self, kind: Kind) -> _Part | None:
        """Return the program that runs for a task of the schedule."""
        return {FORWARD: self.forward, BACKWARD: self.backward, WEIGHT: self.weights}[kind]

    def named(self) -> Iterator[tuple[str, _Part]]:
        """Yield all programs in their order, with their names."""
        late = () if self.weights is None else ("weights",)
        norms = (f"norm {n}" for n in range(len(self.once) - 2))
        names = ("before", "forward", "backward", *late, "values", *norms, "apply")
        yield from zip(names, self.programs, strict=True)

    def map(self, fun: Callable[[str, _Part], _Other]) -> LayerParts[_Other]:
        """Put other forms in the place of the programs.

        Args:
            fun: Makes the other form of a program of its name and the program; it is called in
                their order.

        Returns:
            The other forms.
        """
        found = {name: fun(name, part) for name, part in self.named()}
        return LayerParts(
            before=found.pop("before"),
            forward=found.pop("forward"),
            backward=found.pop("backward"),
            weights=found.pop("weights", None),
            once=tuple(found.values()),
        )
