"""One stage of a plan: the devices, what runs on them, how long it takes and what it holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from meshwise.cluster.mesh import LogicalMesh
from meshwise.plan.counts.contents import Argument, DenseOperator, OtherOperators
from meshwise.resharding.between import Passing

# What a backward pass computes again: nothing, all but dense products of weights, or all but what
# enters the layer.
Remat = Literal["none", "selective", "full"]
REMATS: tuple[Remat, ...] = ("none", "selective", "full")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A run of operators with one decision: a layer of a pipeline, or the whole step on one mesh.

    Attributes:
        layer: Its number in the step.
        equal_to: The first layer of the step that does the same work.
        arguments: The arguments of the step that live with it: parameters and optimizer state; on
            one mesh all arguments.
        decision: Its number in `Plan.decisions`; None in files that had no decisions.
    """

    layer: int
    equal_to: int
    arguments: tuple[Argument, ...]
    decision: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightGradients:
    """Gradients of weights that run apart from those of activations.

    Attributes:
        seconds: Time of one micro-batch, part of the stage's `backward_s`.
        held_bytes: Bytes of one device that a micro-batch keeps after its gradients of activations,
            until its gradients of weights are computed.
        waiting: Micro-batches between the two at the peak.
    """

    seconds: float
    held_bytes: int
    waiting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage; times in seconds, bytes and FLOP of one device.

    A step that runs as one program (`record.ONE_PROGRAM`) is one stage, and `once_s` is its whole
    work.

    Attributes:
        layers: Its layers, in order; at least one.
        submesh: Hosts, and devices of each.
        first_device: Number of its first device in the cluster.
        mesh: Its logical mesh.
        remat: What its backward pass computes again.
        forward_s: Forward pass of one micro-batch.
        backward_s: Backward pass of one micro-batch.
        forward_gather_s: Gathering the activation of one micro-batch that the stage before sends,
            not part of `forward_s`.
        backward_gather_s: The same of the cotangent that the next stage sends.
        forward_passing: How much of what the stage before sends passes between hosts; None where it
            passes once and comes in equal parts.
        backward_passing: The same of what the next stage sends.
        once_s: Work that runs once a step: gradient synchronisation and update.
        resident_bytes: Held all the time.
        gradient_bytes: Of these what sums of gradients take; None where there are none, or where
            that is not told apart, as in older files and in a step that is one program.
        microbatch_bytes: Held for each micro-batch in flight.
        temporary_bytes: On top at the peak.
        in_flight: Its micro-batches in flight at the peak of its mesh.
        waiting_bytes: What values add to the peak of its mesh that wait for the layer that reads
            them: what has arrived, what skips layers, rows of micro-batches that have not begun;
            of several stages on a mesh the first has it.
        memory_bytes: What the plan may use of a device.
        send_bytes: Activations of one micro-batch that go to other stages.
        device_flop: Dense FLOP of one device in a step, recomputation included.
        dense: Dense products and convolutions, equal ones merged.
        others: What else takes time, dearest first; empty in older files.
        weights: Where the schedule splits the backward pass, its later part.
    """

    layers: tuple[Layer, ...]
    submesh: tuple[int, int]
    first_device: int
    mesh: LogicalMesh
    remat: Remat = "none"
    forward_s: float = 0.0
    backward_s: float = 0.0
    forward_gather_s: float = 0.0
    backward_gather_s: float = 0.0
    forward_passing: Passing | None = None
    backward_passing: Passing | None = None
    once_s: float = 0.0
    resident_bytes: int
    microbatch_bytes: int = 0
    temporary_bytes: int
    in_flight: int = 0
    waiting_bytes: int = 0
    memory_bytes: int
    send_bytes: int = 0
    device_flop: float = 0.0
    dense: tuple[DenseOperator, ...] = ()
    others: tuple[OtherOperators, ...] = ()
    weights: WeightGradients | None = None
    gradient_bytes: int | None = None

    @property
    def first_layer(self) -> int:
        """Number of its first layer."""
        return self.layers[0].layer

    @property
    def last_layer(self) -> int:
        """Number of its last layer."""
        return self.layers[-1].layer

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """The arguments of all its layers; one that several layers read comes once."""
        found: dict[str | tuple[int, int], Argument] = {}
        for layer in self.layers:
            for position, argument in enumerate(layer.arguments):
                found.setdefault(argument.name or (layer.layer, position), argument)
        return tuple(found.values())

    @property
    def gather_s(self) -> float:
        """Seconds in which the values of one micro-batch that neighbours send are gathered."""
        return self.forward_gather_s + self.backward_gather_s

    @property
    def num_devices(self) -> int:
        """Number of its devices."""
        hosts, devices = self.submesh
        return hosts * devices

    @property
    def late_bytes(self) -> int:
        """Bytes of one device at the peak of its mesh that wait for gradients of weights."""
        return 0 if self.weights is None else self.weights.waiting * self.weights.held_bytes

    @property
    def held_bytes(self) -> int:
        """Bytes of one device at the peak of its mesh that stay while other programs run."""
        held = self.in_flight * self.microbatch_bytes + self.waiting_bytes
        return self.resident_bytes + held + self.late_bytes

    @property
    def peak_bytes(self) -> int:
        """Predicted peak of one device, as if its mesh had no other stage."""
        return self.held_bytes + self.temporary_bytes


def mesh_peaks(
    mesh_of_stage: Sequence[int], held_bytes: Sequence[int], temporary_bytes: Sequence[int]
) -> tuple[int, ...]:
    """Return the peak of one device of each mesh: what all stages hold, and the most one uses.

    Args:
        mesh_of_stage: For each stage the number of its mesh.
        held_bytes: For each stage the bytes that it holds when its mesh holds most.
        temporary_bytes: For each stage the bytes that it needs only while it runs.
    """
    held, temporary = Counter[int](), dict.fromkeys(mesh_of_stage, 0)
    for m, kept, used in zip(mesh_of_stage, held_bytes, temporary_bytes, strict=True):
        held[m] += kept
        temporary[m] = max(temporary[m], used)
    return tuple(held[m] + temporary[m] for m in sorted(temporary))
