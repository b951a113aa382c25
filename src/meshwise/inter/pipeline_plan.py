"""A pipeline as it was decided: stages with their layers, devices, times and memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from meshwise.cluster.mesh import LogicalMesh
from meshwise.cluster.spec import Cluster
from meshwise.graph.layout import Layout
from meshwise.inter.piece import Remat
from meshwise.plan.decision import GraphDecision
from meshwise.schedules.registry import make_schedule
from meshwise.schedules.schedule import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPlan:
    """One layer of a stage.

    Attributes:
        layer: Its number.
        equal_to: The first layer of the model that is the same work.
        inputs: Names, shapes and layouts of the parameters and of what the optimizer keeps.
        decision: Number of its decision in the plan; None in files that had none.
    """

    layer: int
    equal_to: int
    inputs: tuple[tuple[str, tuple[int, ...], Layout], ...]
    decision: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightGradients:
    """Gradients of weights that run apart from those of activations.

    Attributes:
        seconds: Of one micro-batch, part of the stage's `backward_s`.
        held_bytes: For each micro-batch from the gradients of its activations to those of weights.
        waiting: Micro-batches between the two at the peak.
    """

    seconds: float
    held_bytes: int
    waiting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStage:
    """One stage; times in seconds, bytes of one device.

    Attributes:
        first_layer: First layer.
        last_layer: Last layer, included.
        submesh: Hosts, and devices of each.
        first_device: Number of its first device in the cluster.
        mesh: Its logical mesh.
        remat: What its backward pass computes again.
        forward_s: Of one micro-batch.
        backward_s: Of one micro-batch.
        forward_gather_s: Of one micro-batch: gathering the activation that the stage before sends,
            not part of `forward_s`.
        backward_gather_s: The same of the cotangent that the next stage sends.
        once_s: Gradient synchronisation and update, once a step.
        resident_bytes: Held all the time.
        microbatch_bytes: Held for each micro-batch in flight.
        temporary_bytes: On top at the peak.
        in_flight: Its micro-batches in flight at the peak of its mesh.
        memory_bytes: What a device has.
        send_bytes: Activations of one micro-batch that go to the next stage.
        layers: Its layers.
        weights: Where the schedule splits the backward pass, its later part.
    """

    first_layer: int
    last_layer: int
    submesh: tuple[int, int]
    first_device: int
    mesh: LogicalMesh
    remat: Remat
    forward_s: float
    backward_s: float
    forward_gather_s: float
    backward_gather_s: float
    once_s: float
    resident_bytes: int
    microbatch_bytes: int
    temporary_bytes: int
    in_flight: int
    memory_bytes: int
    send_bytes: int
    layers: tuple[LayerPlan, ...]
    weights: WeightGradients | None = None

    @property
    def gather_s(self) -> float:
        """Of one micro-batch, gathering what the neighbours send."""
        return self.forward_gather_s + self.backward_gather_s

    @property
    def num_devices(self) -> int:
        """Devices in all."""
        hosts, devices = self.submesh
        return hosts * devices

    @property
    def held_bytes(self) -> int:
        """Of one device at the peak of its mesh, what is there only while a program runs apart."""
        late = 0 if self.weights is None else self.weights.waiting * self.weights.held_bytes
        held = self.in_flight * self.microbatch_bytes + late
        return self.resident_bytes + held

    @property
    def peak_bytes(self) -> int:
        """Predicted peak of one device, as if its mesh had no other stage."""
        return self.held_bytes + self.temporary_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinePlan:
    """A whole plan; with its cluster, so that it can be simulated again without the planner.

    Attributes:
        cluster: Where it runs.
        model: What was planned, for display; may be empty.
        batch_size: Rows of the whole batch.
        num_microbatches: B.
        schedule: Name of the schedule, as `schedules.registry` has it.
        hides_transfers: Whether transfers run beside computation.
        delays: For each stage by how many half steps its gradients of weights are delayed
            (`schedules.delay`); none where the schedule is as it is named.
        stages: In order.
        step_time_s: Predicted by the planner.
        bound_s: No plan of `space` is faster, by the planner's own formula.
        space: For which plans the bound holds.
        simulated_s: Step time by simulation.
        bubble_share: Share of device time without work, by simulation.
        exposed_s: Longest time for which a mesh waits for a transfer, by simulation.
        tried: Pairs (number of micro-batches, best step time predicted).
        step_flop: FLOP of the forward pass on the whole batch.
        tied: Names of parameters that several layers read.
        cuts: First and last operator of each layer in the forward pass.
        decisions: Of layers, each different one once; with `cuts`, all that running takes.
    """

    cluster: Cluster
    batch_size: int
    num_microbatches: int
    schedule: str
    hides_transfers: bool
    stages: tuple[PipelineStage, ...]
    step_time_s: float
    bound_s: float
    space: str
    simulated_s: float
    bubble_share: float
    exposed_s: float
    tried: tuple[tuple[int, float], ...]
    step_flop: float
    tied: tuple[str, ...]
    model: str = ""
    cuts: tuple[tuple[int, int], ...] = ()
    decisions: tuple[GraphDecision, ...] = ()
    delays: tuple[int, ...] = ()

    def table(self) -> Schedule:
        """Who runs what in which order.

        Raises:
            PlanError: the schedule does not allow these sizes.
        """
        return make_schedule(
            self.schedule,
            num_stages=len(self.stages),
            num_microbatches=self.num_microbatches,
            num_meshes=self.num_meshes,
            delays=self.delays,
        )

    @property
    def mesh_of_stage(self) -> tuple[int, ...]:
        """For each stage the number of its mesh: stages on the same devices share one."""
        numbers: dict[int, int] = {}
        return tuple(numbers.setdefault(s.first_device, len(numbers)) for s in self.stages)

    @property
    def num_meshes(self) -> int:
        """Meshes; less than stages where the schedule interleaves."""
        return len(set(self.mesh_of_stage))

    @property
    def mesh_peak_bytes(self) -> tuple[int, ...]:
        """Predicted peak of one device of each mesh, with all its stages."""
        return mesh_peaks(
            self.mesh_of_stage,
            [stage.held_bytes for stage in self.stages],
            [stage.temporary_bytes for stage in self.stages],
        )

    @property
    def gap(self) -> float:
        """(step time - bound) / step time."""
        return max(0.0, 1 - self.bound_s / self.step_time_s) if self.step_time_s else 0.0

    @property
    def peak_bytes(self) -> int:
        """Predicted peak of the worst device."""
        return max(self.mesh_peak_bytes)

    def explain(self) -> str:
        """The plan as a text for people, at most 100 columns wide; needs nothing but the plan."""
        # As with the JSON form: the text is made from the fields of this class.
        from meshwise.inter.pipeline_text import pipeline_text

        return pipeline_text(self)

    def to_json(self) -> str:
        """The plan as JSON text; equal plans give equal bytes."""
        # The two files need each other: the writer names the fields of this class.
        from meshwise.inter.pipeline_json import pipeline_to_json

        return pipeline_to_json(self)

    @classmethod
    def from_json(cls, text: str) -> PipelinePlan:
        """Read the text of `to_json`.

        Raises:
            PlanError: naming the field that is missing, unknown or wrong.
        """
        from meshwise.inter.pipeline_json import pipeline_from_json

        return pipeline_from_json(text)


def mesh_peaks(
    mesh_of_stage: Sequence[int], held_bytes: Sequence[int], temporary_bytes: Sequence[int]
) -> tuple[int, ...]:
    """Peak of one device of each mesh: what all its stages hold, and the most that one uses.

    Args:
        mesh_of_stage: For each stage its mesh.
        held_bytes: Of each stage when its mesh holds most.
        temporary_bytes: Of each stage, only while it runs.
    """
    held, temporary = Counter[int](), dict.fromkeys(mesh_of_stage, 0)
    for m, kept, used in zip(mesh_of_stage, held_bytes, temporary_bytes, strict=True):
        held[m] += kept
        temporary[m] = max(temporary[m], used)
    return tuple(held[m] + temporary[m] for m in sorted(temporary))
