"""The plan: what runs where, what it costs, and why one may trust it."""

from __future__ import annotations

from dataclasses import dataclass

from meshwise.cluster.mesh import LogicalMesh
from meshwise.plan.collectives import Collective
from meshwise.plan.contents import Argument, DenseOperator
from meshwise.plan.decision import GraphDecision
from meshwise.plan.flop import Replicated
from meshwise.plan.padding import NOT_PADDED, Padding
from meshwise.plan.rivals import MemoryPrice, Rival


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One program on one mesh.

    Attributes:
        mesh: The logical mesh.
        decision: Layouts and strategies.
        arguments: What the inputs of `decision` are, one for each.
        dense: Dense products and convolutions, equal ones merged.
        peak_bytes: Predicted peak memory of one device.
        memory_bytes: What the plan may use of a device.
        device_flop: Dense FLOP of one device in a step.
    """

    mesh: LogicalMesh
    decision: GraphDecision
    arguments: tuple[Argument, ...]
    dense: tuple[DenseOperator, ...]
    peak_bytes: int
    memory_bytes: int
    device_flop: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A plan for one training step; only numbers, texts and tuples.

    Attributes:
        step_time_s: Predicted time of a step.
        collectives: Every collective of a step.
        stages: One on one mesh; more in a pipeline.
        num_microbatches: In how many parts the batch runs, one after the other.
        schedule: Of the pipeline; empty on one mesh.
        method: Text of the method that decided, as `IntraOp()`.
        objective: What it minimised: `time` or `alpa`.
        gap: Relative distance to the lower bound of the solver; None if there is no bound.
        space: Among which plans the gap holds.
        status: How the solver ended: `optimal`, `time limit`, or `greedy` for methods that
            do not solve.
        fingerprint: Of the graph that the plan is for.
        replicated: What runs whole on every device.
        parameters: Number in the call, static arguments counted, and name (may be empty) of each
            positional argument; paths of arguments begin with these numbers.
        rivals: What other choices would cost, if it was asked.
        memory_price: What more memory would save, if it was asked.
        warnings: What the user should know.
        padding: Dims that are longer inside than in the user's step.
    """

    step_time_s: float
    collectives: tuple[Collective, ...]
    stages: tuple[Stage, ...]
    num_microbatches: int = 1
    schedule: str = ""
    method: str
    objective: str
    gap: float | None
    space: str
    status: str
    fingerprint: str
    replicated: Replicated
    parameters: tuple[tuple[int, str], ...] = ()
    rivals: tuple[Rival, ...] = ()
    memory_price: MemoryPrice | None = None
    warnings: tuple[str, ...] = ()
    padding: Padding = NOT_PADDED

    @property
    def peak_bytes(self) -> int:
        """Predicted peak memory of the worst device."""
        return max(stage.peak_bytes for stage in self.stages)

    @property
    def device_flop(self) -> float:
        """Dense FLOP of the worst device in a step."""
        return max(stage.device_flop for stage in self.stages)

    @property
    def mesh(self) -> LogicalMesh:
        """The mesh of the first stage."""
        return self.stages[0].mesh

    @property
    def decision(self) -> GraphDecision:
        """The decision of the first stage."""
        return self.stages[0].decision

    def explain(self) -> str:
        """The plan as a text for people, at most 100 columns wide; needs nothing but the plan."""
        # As with the JSON form: the text is made from the fields of this class.
        from meshwise.plan.explain import explain

        return explain(self)

    def to_json(self) -> str:
        """The plan as JSON text; equal plans give equal bytes."""
        # The two files need each other: the writer names the fields of this class.
        from meshwise.plan.json_form import plan_to_json

        return plan_to_json(self)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read the text of `to_json`.

        Raises:
            PlanError: naming the field that is missing, unknown or wrong.
        """
        from meshwise.plan.json_form import plan_from_json

        return plan_from_json(text)
