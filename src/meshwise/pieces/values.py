"""The values of the step that the graph of a piece takes and makes, group by group.

The trace that makes a graph says here what each of its inputs and results is, and the lowering and
the runtime read it; nobody counts positions.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshwise.program.names import (
    Activation,
    Cotangent,
    CotangentSum,
    Gradient,
    LossValue,
    SentValue,
    SharedValue,
    StepArgument,
    StepResult,
    StepValue,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceInputs:
    """The inputs of the graph of a piece; its groups stand one behind the other.

    Attributes:
        state: Arguments that the update overwrites.
        arguments: Other arguments; of batch data the graph takes the rows of one micro-batch.
        entering: Activations that enter.
        cotangents: Cotangents of activations that leave, each the sum over its readers.
        gradients: Gradients of tied parameters that other pieces send.
        values: Values of the loss that the update reads.
        shared: Values that the update has joined from several layers.
        whole: Batch data of which all rows are needed, before the loop or in the update.
    """

    state: tuple[StepArgument, ...]
    arguments: tuple[StepArgument, ...]
    entering: tuple[Activation, ...]
    cotangents: tuple[CotangentSum, ...]
    gradients: tuple[Gradient, ...]
    values: tuple[LossValue, ...]
    shared: tuple[SharedValue, ...]
    whole: tuple[StepArgument, ...]

    def in_order(self) -> tuple[StepValue, ...]:
        """Return what each input of the graph is."""
        return (
            *self.state,
            *self.arguments,
            *self.entering,
            *self.cotangents,
            *self.gradients,
            *self.values,
            *self.shared,
            *self.whole,
        )

    @property
    def entering_at(self) -> range:
        """The positions of the activations that enter."""
        return _behind(range(len(self.state) + len(self.arguments)), len(self.entering))

    @property
    def cotangents_at(self) -> range:
        """The positions of the cotangents of activations that leave."""
        return _behind(self.entering_at, len(self.cotangents))


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceResults:
    """The results of the graph of a piece; its groups stand one behind the other.

    Attributes:
        state: New values of the state, in the order of `PieceInputs.state`.
        leaving: Activations that leave.
        cotangents: Cotangents of activations that entered.
        gradients: Gradients of tied parameters that go to other pieces.
        others: Other results of the step.
        sent: For each phase of the update the values that are sent to be joined.
        collected: Values of the loss that each micro-batch passes on, here those of all of them.
    """

    state: tuple[StepResult, ...]
    leaving: tuple[Activation, ...]
    cotangents: tuple[Cotangent, ...]
    gradients: tuple[Gradient, ...]
    others: tuple[StepResult, ...]
    sent: tuple[tuple[SentValue, ...], ...]
    collected: tuple[Activation, ...]

    def in_order(self) -> tuple[StepValue, ...]:
        """Return what each result of the graph is."""
        return (
            *self.state,
            *self.leaving,
            *self.cotangents,
            *self.gradients,
            *self.others,
            *(value for phase in self.sent for value in phase),
            *self.collected,
        )

    @property
    def update_at(self) -> tuple[tuple[int, ...], ...]:
        """The positions of what each phase of the update sends, then of the results of the step."""
        place = {value: j for j, value in enumerate(self.in_order())}
        made = (*self.sent, (*self.state, *self.others))
        return tuple(tuple(place[value] for value in values) for values in made)

    @property
    def leaving_at(self) -> range:
        """The positions of the activations that leave."""
        return _behind(range(len(self.state)), len(self.leaving))

    @property
    def cotangents_at(self) -> range:
        """The positions of the cotangents of activations that entered."""
        return _behind(self.leaving_at, len(self.cotangents))


def _behind(group: range, size: int) -> range:
    return range(group.stop, group.stop + size)
