"""The methods a user can name: how a plan is found."""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal, get_args

from meshwise.errors import PlanError
from meshwise.plan.plan import Plan
from meshwise.resharding.cross_mesh.strategies import BROADCAST, STRATEGIES
from meshwise.schedules.registry import ALL, choices

Objective = Literal["time", "alpa"]


@dataclass(frozen=True, slots=True)
class IntraOp:
    """Intra-operator parallelism found by optimisation.

    Attributes:
        mesh_shape: Logical shape of the mesh, of any number of axes; None tries every view of one
            and two axes.
        objective: "time", or "alpa": that of Alpa's paper, communication only.
        time_limit_s: Seconds for the solver, for each view; a plan that they cut short need not be
            the same each time.
        seed: Of the solver.
    """

    mesh_shape: tuple[int, ...] | None = None
    objective: Objective = "time"
    time_limit_s: float = math.inf
    seed: int = 0

    def __post_init__(self) -> None:
        _check_mesh_shape(self)
        if self.objective not in get_args(Objective):
            raise PlanError(
                f"IntraOp(objective={self.objective!r}): the objectives are "
                f"{' and '.join(map(repr, get_args(Objective)))}"
            )
        _check_solver_limits(self)


@dataclass(frozen=True, slots=True)
class Auto:
    """Everything found by optimisation; on one mesh the same as `IntraOp()`.

    Attributes:
        time_limit_s: Seconds for the solver, for each view of a mesh; a plan that they cut short
            need not be the same each time.
        seed: Of the solver.
        stages: Pipeline stages; "auto" for as many as are fastest, one included; None for one mesh,
            which is planned as a whole and faster.
        schedule: The name of the pipeline's schedule, as `schedules.registry.choices` has it; None
            for the fastest by simulation of all but GPipe, which is never faster than eager 1F1B
            and holds more; "all" for the fastest of all.
        transfers: How tensors pass between hosts from stage to stage: "broadcast" in chunks from
            host to host, "send/recv", "local all-gather" or "global all-gather" (AlpaComm, section
            3.1); none is faster than a broadcast.
        measure: Whether layers of a pipeline are timed on the devices of this process, in place of
            predictions; what was timed before is not timed again.
        offload: Whether state that only the update reads, as the moments of an optimizer, stays in
            the memory of the hosts between its uses; None: where nothing fits without, on one mesh
            also where the step is faster so.
    """

    time_limit_s: float = math.inf
    seed: int = 0
    stages: int | Literal["auto"] | None = None
    schedule: str | None = None
    transfers: str = BROADCAST
    measure: bool = False
    offload: bool | None = None

    def __post_init__(self) -> None:
        _check_solver_limits(self)
        if self.transfers not in STRATEGIES:
            raise PlanError(
                f"Auto(transfers={self.transfers!r}): tensors pass between hosts by "
                f"{', '.join(map(repr, STRATEGIES))}"
            )
        if self.stages not in (None, "auto") and not _is_size(self.stages):
            raise PlanError(
                f"Auto(stages={self.stages!r}): stages must be a whole number of at least 1, or "
                "'auto' for as many as are fastest"
            )
        if self.offload not in (None, True, False):
            raise PlanError(
                f"Auto(offload={self.offload!r}): offload must be True (state that only the update "
                "reads stays in the memory of the hosts), False, or None for where it helps"
            )
        if self.measure and self.stages is None:
            raise PlanError("Auto(measure=True): layers of pipelines are measured; give stages too")
        if self.schedule is not None and self.stages is None:
            raise PlanError(
                f"Auto(schedule={self.schedule!r}): a schedule is of a pipeline; give stages too"
            )
        if self.schedule not in (None, *choices(), ALL):
            raise PlanError(
                f"Auto(schedule={self.schedule!r}): the schedules that can run are "
                f"{', '.join(map(repr, (*choices(), ALL)))}"
            )


@dataclass(frozen=True, slots=True)
class DataParallel:
    """Batch split over all devices, state replicated, gradients all-reduced.

    The mesh has one axis, or one of hosts and one of the devices of a host: what is faster.  So it
    is for `Zero2` and `Zero3`.
    """


@dataclass(frozen=True, slots=True)
class Zero2:
    """Data parallel with gradients and optimizer state sharded."""


@dataclass(frozen=True, slots=True)
class Zero3:
    """Data parallel with parameters, gradients and optimizer state sharded."""


@dataclass(frozen=True, slots=True)
class Megatron:
    """Batch split `dp` ways, dense layers column- and row-split `tp` ways."""

    dp: int
    tp: int
    pp: int = 1

    def __post_init__(self) -> None:
        for name, value in (("dp", self.dp), ("tp", self.tp), ("pp", self.pp)):
            if not _is_size(value):
                raise PlanError(
                    f"Megatron({name}={value!r}): {name} must be a whole number of at least 1"
                )


@dataclass(frozen=True, slots=True)
class Heuristic:
    """A baseline of Alpa's paper: the largest dim of every input split, the rest by propagation."""

    mesh_shape: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        _check_mesh_shape(self)


@dataclass(frozen=True, slots=True)
class Replay:
    """A plan that was found before.

    Beside it `parallelize` refuses pins, another number of micro-batches than the plan's, and less
    memory than the plan needs.
    """

    plan: Plan

    def __post_init__(self) -> None:
        plan: object = self.plan
        if isinstance(plan, str):
            raise PlanError(
                f"Replay takes a Plan, got the string {plan!r:.60}; read the plan's JSON with "
                "mw.Plan.from_json(text)"
            )
        if not isinstance(plan, Plan):
            raise PlanError(
                f"Replay takes a Plan, got {_described(plan)}; pass what step.plan(...) or "
                "mw.Plan.from_json(text) returned"
            )


class PlannedStep(ABC):
    """A step that has made plans."""

    @property
    @abstractmethod
    def plans(self) -> tuple[Plan, ...]:
        """The plans made so far, oldest first."""


@dataclass(frozen=True, slots=True)
class Follow:
    """The placement of another step, as evaluation takes that of training: nothing moves between.

    Arguments follow those of the other step's latest plan that have the same path, shape and
    dtype, or else a path that ends alike (`0/kernel` follows `0/params/kernel`).  The optimiser
    fills the rest, on the same mesh; pins win.

    Where the other step runs in stages, this one is cut where its arguments live; it is a forward
    pass, whose stages run one after the other on the whole batch.  A `scan` over layers is taken
    apart as in training, so that each stage runs the layers that it holds.

    Attributes:
        step: The other step, planned before this one, or its plan.
    """

    step: PlannedStep | Plan

    def __post_init__(self) -> None:
        step: object = self.step
        if not isinstance(step, (PlannedStep, Plan)):
            raise PlanError(
                f"Follow takes a step made by parallelize, or its plan, got {_described(step)}; "
                "pass method=mw.Follow(train_step)"
            )

    def followed(self) -> Plan:
        """Return the plan that is followed.

        Raises:
            PlanError: the step has none yet.
        """
        if isinstance(self.step, Plan):
            return self.step
        if not self.step.plans:
            raise PlanError(
                "Follow(step): that step has no plan yet; call it, or step.plan(state, batch), "
                "before"
            )
        return self.step.plans[-1]


Method = IntraOp | Auto | DataParallel | Zero2 | Zero3 | Megatron | Heuristic | Replay | Follow


def asks_for_stages(method: Method) -> str:
    """Return the text of a method that asks for pipeline stages.

    Args:
        method: The method.

    Returns:
        Its text; empty for one that does not ask for stages.
    """
    return repr(method) if isinstance(method, Megatron) and method.pp > 1 else ""


def check_method(method: object) -> Method:
    """Return a method, or say what is no method.

    Args:
        method: What the user gave.

    Returns:
        The same.

    Raises:
        PlanError: it is the class, the name or the plan that is meant.
    """
    if isinstance(method, Method):
        return method
    classes = {cls.__name__: cls for cls in get_args(Method)}
    if isinstance(method, Plan):
        raise PlanError("method is a Plan; to run it again pass method=mw.Replay(plan)")
    name = method.__name__ if isinstance(method, type) else str(method)
    meant = next((n for n in classes if n.lower() == _bare(name)), None)
    if meant is not None and (isinstance(method, str) or method is classes[meant]):
        what = f"the string {method!r}" if isinstance(method, str) else f"the class {meant}"
        raise PlanError(f"method is {what}; pass method=mw.{_CALLS.get(meant, meant + '()')}")
    raise PlanError(
        f"method is {_described(method)}; the methods are "
        + ", ".join(f"mw.{_CALLS.get(n, n + '()')}" for n in classes)
    )


_CALLS = {
    "Megatron": "Megatron(dp=..., tp=...)",
    "Replay": "Replay(plan)",
    "Follow": "Follow(step)",
}


def _bare(name: str) -> str:
    """`zero-3`, `Zero3()` and `mw.Zero3` as `zero3`."""
    name = name.lower().removeprefix("mw.").partition("(")[0].partition(":")[0]
    return "".join(letter for letter in name if letter.isalnum())


def _described(value: object) -> str:
    """Return a value with its type, as `3 (int)`."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"{value!r:.60} ({type(value).__name__})"


def _is_size(value: Any) -> bool:
    try:
        return not isinstance(value, bool) and operator.index(value) >= 1
    except TypeError:
        return False


def _check_mesh_shape(method: IntraOp | Heuristic) -> None:
    shape: object = method.mesh_shape
    name = type(method).__name__
    if shape is None:
        return
    if not isinstance(shape, (tuple, list)) or not shape or not all(map(_is_size, shape)):
        raise PlanError(
            f"{name}(mesh_shape={shape!r}): the shape of a mesh is a tuple of sizes of at least "
            "1, as (2, 4), or None for every view"
        )
    object.__setattr__(method, "mesh_shape", tuple(map(operator.index, shape)))


def _check_solver_limits(method: IntraOp | Auto) -> None:
    name, limit, seed = type(method).__name__, method.time_limit_s, method.seed
    if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not limit > 0:
        raise PlanError(f"{name}(time_limit_s={limit!r}): the limit must be a positive number")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise PlanError(f"{name}(seed={seed!r}): the seed must be a whole number from 0")
