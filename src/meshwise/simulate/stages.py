"""What the simulator must know of stages and of what passes between them."""

from __future__ import annotations

from dataclasses import dataclass, field

from meshwise.simulate.actions import Flow


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCost:
    """One stage on its mesh; bytes are those of one device, the one that needs most.

    Attributes:
        forward_s: Forward of one micro-batch.
        backward_s: Whole backward of one micro-batch, recomputation included.
        activation_gradient_s: The part that gives the gradient of the activations, where the
            schedule splits the backward.
        weight_gradient_s: The part that gives the gradients of the weights, likewise.
        sync_s: Reduction of the gradients once a step, after the stage's last micro-batch.
        apply_s: Update by the optimizer, once a step, after that.
        resident_bytes: Parameters, optimizer state, gradients: held all the time.
        held_bytes: Bytes of each micro-batch, from the start of its forward to the end of its backward
            (where the backward is split, of its activation gradient; without backward, of its
            forward).
        weight_held_bytes: Bytes of each micro-batch, from there to the end of its weight gradient, where
            the backward is split; None for as much as `held_bytes`.
        forward_temporary_bytes: While a forward runs, beyond what is held.
        backward_temporary_bytes: While a backward or activation gradient runs.
        weight_temporary_bytes: While a weight gradient runs.
        apply_temporary_bytes: While the optimizer runs.
    """

    forward_s: float
    backward_s: float = 0.0
    activation_gradient_s: float | None = None
    weight_gradient_s: float | None = None
    sync_s: float = 0.0
    apply_s: float = 0.0
    resident_bytes: int = 0
    held_bytes: int = 0
    weight_held_bytes: int | None = None
    forward_temporary_bytes: int = 0
    backward_temporary_bytes: int = 0
    weight_temporary_bytes: int = 0
    apply_temporary_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCrossing:
    """What one micro-batch sends in one direction.

    Attributes:
        flows: Between hosts, all at once; none if nothing has to move.
        send_bytes: Bytes of one device of the sender, from the end of the task that makes it to the end
            of the transfer, where `held_bytes` does not hold it anyway.
        receive_bytes: Bytes of one device of the receiver, from the start of the transfer to the start of
            the task that takes it, which counts it as its own from there on.
    """

    flows: tuple[Flow, ...] = ()
    send_bytes: int = 0
    receive_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBoundary:
    """What passes between two stages, neighbours or not.

    Attributes:
        source: The lower stage.
        destination: The higher stage.
        forward: Activations of one micro-batch, source to destination.
        backward: Their gradients, destination to source.
    """

    source: int
    destination: int
    forward: StageCrossing = field(default_factory=StageCrossing)
    backward: StageCrossing = field(default_factory=StageCrossing)
