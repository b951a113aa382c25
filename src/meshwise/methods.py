"""The methods a user can name: how a plan is found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from meshwise.plan.plan import Plan

Objective = Literal["time", "alpa"]


@dataclass(frozen=True, slots=True)
class IntraOp:
    """Intra-operator parallelism found by optimisation.

    Attributes:
        mesh_shape: Logical shape of the mesh, of any number of axes; None tries every view of one
            and two axes.
        objective: "time", or "alpa": the paper's, communication only.
        time_limit_s: For the solver, for each view.
        seed: Of the solver.
    """

    mesh_shape: tuple[int, ...] | None = None
    objective: Objective = "time"
    time_limit_s: float = 60.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Auto:
    """Everything found by optimisation; on one mesh the same as `IntraOp()`."""

    time_limit_s: float = 60.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class DataParallel:
    """Batch split over all devices, state replicated, gradients all-reduced."""


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


@dataclass(frozen=True, slots=True)
class Heuristic:
    """The paper's baseline: the largest dim of every input split, the rest by propagation."""

    mesh_shape: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Replay:
    """A plan that was found before."""

    plan: Plan


Method = IntraOp | Auto | DataParallel | Zero2 | Zero3 | Megatron | Heuristic | Replay
