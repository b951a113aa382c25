"""What a plan says: what runs where, what it costs, and why one may trust it."""

from __future__ import annotations

from dataclasses import dataclass

from meshwise.cluster.mesh import LogicalMesh
from meshwise.cluster.spec import ClusterSpec
from meshwise.errors import PlanError
from meshwise.plan.counts.collectives import Collective
from meshwise.plan.counts.flop import NOTHING_REPLICATED, Replicated
from meshwise.plan.decision import GraphDecision
from meshwise.plan.padding import NOT_PADDED, Padding
from meshwise.plan.peak_part import PeakPart
from meshwise.plan.rivals import MemoryPrice, Rival
from meshwise.plan.stage import Stage, mesh_peaks
from meshwise.schedules.gpipe import GPIPE
from meshwise.schedules.pipeline_schedule import choice_name
from meshwise.schedules.registry import is_forward_only, make_schedule
from meshwise.schedules.schedule import Schedule

# In place of the name of a schedule: the whole step is one program on one mesh, micro-batches in a
# loop inside.
ONE_PROGRAM = "one-program"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRecord:
    """The fields of a plan for one step; only numbers, texts and tuples.

    One mesh is a plan of one stage.  With its cluster a plan can be simulated again without the
    planner.

    Attributes:
        step_time_s: Predicted time of a step, in seconds; that of a pipeline by simulation.
        stages: In the order of the layers.
        decisions: Decisions about layers, each different one once.
        collectives: Every collective of a step within the meshes.
        cluster: Where it runs; None in files of one mesh that did not say it.
        model: What was planned, for display; may be empty.
        batch_size: Rows of the whole batch; 0 if no argument is batch data.
        num_microbatches: In how many parts the batch runs.
        schedule: Name of the schedule, as `schedules.registry` has it, or `ONE_PROGRAM`.
        hides_transfers: Whether transfers between stages run beside computation.
        transfers: How tensors pass between the hosts of stages, one of
            `cross_mesh.strategies.STRATEGIES`.  Empty if no tensor does, or the file is older: each
            byte passes once.
        delays: For each stage by how many half steps its gradients of weights are delayed
            (`schedules.delay`); none where the schedule is as it is named.
        formula_s: What the search took the step to take, in seconds, by a formula.  It leaves out
            changes of layout of values that skip layers.  On one mesh it is `step_time_s`.
        bubble_share: Share of device time without work, by simulation.
        exposed_s: Longest time for which a mesh waits for a transfer, by simulation.
        tried: Pairs (number of micro-batches, least seconds of a step by the formula).
        step_flop: FLOP of the forward pass on the whole batch; 0 if it is not known apart.
        tied: Names of parameters that several layers read.
        cuts: First and last operator of each layer in the forward pass; none for a whole step.
        method: Text of the method that decided, as `IntraOp()`.
        objective: What it minimised: `time` or `alpa`.
        gap: Relative distance to a lower bound; None if there is no bound.
        space: Among which plans the gap holds.
        status: How the search ended: `optimal`, `time limit`, or `greedy` for methods that do not
            search; empty where there is only the gap.
        fingerprint: Digest of the step that the plan is for; empty in files that did not say it.
        replicated: What runs whole on every device.
        parameters: Number in the call, static arguments counted, and name (may be empty) of each
            positional argument; paths of arguments begin with these numbers.
        spelling: How the user writes arguments, where their paths do not show it, see
            `plan.spelling`; empty in older files.
        peak_parts: What fills a device of one program when it holds most, largest first.
        rivals: What other choices would cost, if it was asked.
        memory_price: What more memory would save, if it was asked.
        warnings: What the user should know.
        padding: Dims that are longer inside than in the user's step.
        joins_attention: Whether each attention that was found in the step is one operator, so that
            its keys may stay split along the sequence.
        joins_experts: Whether the experts of each layer that were found are one operator.
        verified: The compiler by which it fits, and how full a device is; empty if none was asked.
    """

    step_time_s: float
    stages: tuple[Stage, ...]
    decisions: tuple[GraphDecision, ...] = ()
    collectives: tuple[Collective, ...] = ()
    cluster: ClusterSpec | None = None
    model: str = ""
    batch_size: int = 0
    num_microbatches: int = 1
    schedule: str = ONE_PROGRAM
    hides_transfers: bool = False
    transfers: str = ""
    delays: tuple[int, ...] = ()
    formula_s: float
    bubble_share: float = 0.0
    exposed_s: float = 0.0
    tried: tuple[tuple[int, float], ...] = ()
    step_flop: float = 0.0
    tied: tuple[str, ...] = ()
    cuts: tuple[tuple[int, int], ...] = ()
    method: str = ""
    objective: str = "time"
    gap: float | None = None
    space: str = ""
    status: str = ""
    fingerprint: str = ""
    replicated: Replicated = NOTHING_REPLICATED
    parameters: tuple[tuple[int, str], ...] = ()
    spelling: tuple[tuple[str, str], ...] = ()
    peak_parts: tuple[PeakPart, ...] = ()
    rivals: tuple[Rival, ...] = ()
    memory_price: MemoryPrice | None = None
    warnings: tuple[str, ...] = ()
    padding: Padding = NOT_PADDED
    joins_attention: bool = False
    joins_experts: bool = False
    verified: str = ""

    @property
    def peak_bytes(self) -> int:
        """Predicted peak memory of the worst device, in bytes."""
        return max(self.mesh_peak_bytes)

    @property
    def device_flop(self) -> float:
        """Dense FLOP of the worst device in a step, with all stages of its mesh."""
        flop = [0.0] * self.num_meshes
        for mesh, stage in zip(self.mesh_of_stage, self.stages, strict=True):
            flop[mesh] += stage.device_flop
        return max(flop)

    @property
    def mesh_of_stage(self) -> tuple[int, ...]:
        """For each stage the number of its mesh: stages on the same devices share one."""
        numbers: dict[int, int] = {}
        return tuple(numbers.setdefault(s.first_device, len(numbers)) for s in self.stages)

    @property
    def num_meshes(self) -> int:
        """Number of meshes; less than that of stages where the schedule interleaves."""
        return len(set(self.mesh_of_stage))

    @property
    def mesh_peak_bytes(self) -> tuple[int, ...]:
        """Predicted peak of one device of each mesh, with all its stages, in bytes."""
        return mesh_peaks(
            self.mesh_of_stage,
            [stage.held_bytes for stage in self.stages],
            [stage.temporary_bytes for stage in self.stages],
        )

    @property
    def mesh(self) -> LogicalMesh:
        """The mesh of a plan of one stage.

        Raises:
            PlanError: there are several stages, each with its own.
        """
        return self._only_stage.mesh

    @property
    def decision(self) -> GraphDecision:
        """The decision of a plan whose whole step is one program.

        Raises:
            PlanError: there are several layers, each with its own.
        """
        layers = self._only_stage.layers
        if len(layers) != 1 or layers[0].decision is None:
            raise PlanError(
                f"the plan has {len(layers)} layers, each with its own decision; read "
                "plan.decisions[layer.decision] for each layer of plan.stages"
            )
        return self.decisions[layers[0].decision]

    @property
    def _only_stage(self) -> Stage:
        if len(self.stages) != 1:
            raise PlanError(
                f"the plan has {len(self.stages)} stages, each with its own mesh; read plan.stages"
            )
        return self.stages[0]

    @property
    def schedule_choice(self) -> str:
        """Name by which a user asks for the schedule, as `1f1b-delayed` where there are delays."""
        return choice_name(self.schedule, delays_weights=bool(self.delays))

    def table(self) -> Schedule:
        """Return who runs what in which order; a step that is one program is one task.

        Raises:
            PlanError: the schedule does not allow these sizes.
        """
        is_whole = self.schedule == ONE_PROGRAM or is_forward_only(self.schedule)
        return make_schedule(
            GPIPE.name if self.schedule == ONE_PROGRAM else self.schedule,
            num_stages=len(self.stages),
            num_microbatches=1 if is_whole else self.num_microbatches,
            num_meshes=len(self.stages) if is_whole else self.num_meshes,
            delays=self.delays,
        )
