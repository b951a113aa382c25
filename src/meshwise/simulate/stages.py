"""What the simulator must know of stages and of what passes between them."""

from __future__ import annotations

from dataclasses import dataclass

from meshwise.simulate.links import Flow


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCost:
    """One stage on its mesh; bytes are those of one device, the one that needs most.

    Attributes:
        forward_s: Seconds of the forward of one micro-batch.
        backward_s: Seconds of its whole backward, recomputation included.
        activation_gradient_s: Seconds of the part that gives the gradient of the activations, where
            the schedule splits the backward.
        weight_gradient_s: Seconds of the part that gives the gradients of the weights, likewise.
        apply_s: Seconds of what is done once a step, after the last micro-batch of the stage.
        resident_bytes: Parameters, optimizer state, gradients: held all the time.
        held_bytes: Bytes of each micro-batch, from the start of its forward to the end of its
            backward (where the backward is split, of its activation gradient; without backward, of
            its forward).
        weight_held_bytes: Bytes of each micro-batch, from there to the end of its weight gradient,
            where the backward is split; None for as much as `held_bytes`.
        temporary_bytes: Bytes beyond what is held while anything runs.
    """

    forward_s: float
    backward_s: float = 0.0
    activation_gradient_s: float | None = None
    weight_gradient_s: float | None = None
    apply_s: float = 0.0
    resident_bytes: int = 0
    held_bytes: int = 0
    weight_held_bytes: int | None = None
    temporary_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBoundary:
    """What one micro-batch sends between two stages, neighbours or not.

    Attributes:
        source: The lower stage.
        destination: The higher stage.
        forward: Flows of its activations, source to destination, all at once; none if nothing has
            to move.
        backward: Flows of their gradients, destination to source.
    """

    source: int
    destination: int
    forward: tuple[Flow, ...] = ()
    backward: tuple[Flow, ...] = ()
