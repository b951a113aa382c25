"""Names of the values that the executables of a pipeline take and make."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from meshwise.graph.layout import Layout
from meshwise.program.layer_parts import LayerParts

# A variable of the forward pass or of the update; here it is only compared with others.
Variable: TypeAlias = Hashable

# Values that only one layer has:
# whole:     what a layer makes once a step for all micro-batches
# sum:       what adds up over micro-batches
# kept:      what the backward pass reads of the forward pass
# entering:  an activation that entered, in the layout in which the layer reads it
# border:    what the update reads of a program that ran before it
# delayed:   what gradients of weights read of gradients of activations
# total:     the sum of the cotangents of an activation that left, for the gradients of weights
LocalRole: TypeAlias = Literal["whole", "sum", "kept", "entering", "border", "delayed", "total"]


@dataclass(frozen=True, slots=True)
class StepArgument:
    """A flat argument of the step, by its number."""

    number: int


@dataclass(frozen=True, slots=True)
class StepResult:
    """A flat result of the step, by its number."""

    number: int


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one micro-batch of an argument that is batch data.

    Attributes:
        number: The number of the argument.
    """

    number: int


@dataclass(frozen=True, slots=True)
class MicrobatchIndex:
    """The number of the micro-batch, as a scalar."""


@dataclass(frozen=True, slots=True)
class Activation:
    """A value of the forward pass that a layer makes.

    Attributes:
        variable: The variable of the forward pass.
    """

    variable: Variable


@dataclass(frozen=True, slots=True)
class Cotangent:
    """The cotangent of an activation, as one layer that reads the activation makes it."""

    activation: Activation


@dataclass(frozen=True, slots=True)
class CotangentTerm:
    """The same cotangent, as the layer that made the activation takes it.

    Attributes:
        activation: The activation.
        reader: The number of the layer that sends the cotangent.
    """

    activation: Activation
    reader: int


@dataclass(frozen=True, slots=True)
class CotangentSum:
    """The sum of the cotangents of an activation that leaves its layer once a step."""

    activation: Activation


@dataclass(frozen=True, slots=True)
class Gradient:
    """The gradient of a tied parameter, which one layer sends to another.

    Attributes:
        parameter: The number of the parameter.
    """

    parameter: int


@dataclass(frozen=True, slots=True)
class GradientTerm:
    """One of several gradients of a tied parameter.

    Attributes:
        parameter: The number of the parameter.
        number: The number of the term.
    """

    parameter: int
    number: int


@dataclass(frozen=True, slots=True)
class LossValue:
    """The value of the loss (number 0) or one of its auxiliary results."""

    number: int


@dataclass(frozen=True, slots=True)
class SentValue:
    """A value that the update of a layer sends to be joined with those of other layers."""

    variable: Variable


@dataclass(frozen=True, slots=True)
class SharedValue:
    """A value that the update has joined from several layers."""

    variable: Variable


@dataclass(frozen=True, slots=True)
class Local:
    """A value that only one layer has.

    Attributes:
        role: What the value is for.
        number: Which of the values with this role it is; `pieces.roles.Value` says what it counts.
    """

    role: LocalRole
    number: int


StepValue: TypeAlias = (
    StepArgument
    | StepResult
    | Rows
    | MicrobatchIndex
    | Activation
    | Cotangent
    | CotangentTerm
    | CotangentSum
    | Gradient
    | GradientTerm
    | LossValue
    | SentValue
    | SharedValue
    | Local
)


def is_sum(value: StepValue) -> bool:
    """Tell whether a value adds up over micro-batches, each of which overwrites it.

    Args:
        value: The value.

    Returns:
        Whether it does.
    """
    return isinstance(value, Local) and value.role == "sum"


@dataclass(frozen=True, slots=True)
class Name:
    """A value at the border of an executable.

    Attributes:
        value: The value.
        layout: The layout of the value there.
    """

    value: StepValue
    layout: Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramSpec:
    """An executable as the instructions see it.

    Attributes:
        number: Its number in the table of executables.
        label: A text that says what it does, as `forward of layer 3`.
        inputs: Names of its inputs.
        outputs: Names of its outputs; several may be one value.
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
        stage: The number of the stage that runs them.
        parts: The executables.
    """

    stage: int
    parts: LayerParts[ProgramSpec]
