"""What planning of one graph on one mesh is asked, and what it answers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from meshwise.graph.layout import Layout
from meshwise.graph.loops import Strategy
from meshwise.plan.decision import GraphDecision

TIME = "time"
ALPA = "alpa"

# Where an operator stands: for each enclosing operator its position and the number of its body,
# then its own position.
OperatorPath = tuple[int, ...]
# For each mesh axis the choices that a strategy may take; None leaves the axis free.
AllowedChoices = tuple[frozenset[int] | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Restriction:
    """A smaller space of plans: what makes a method.

    Attributes:
        name: Of the method.
        pins: Layouts that are fixed, by position among the graph's inputs.
        input_axes: For positions among the graph's inputs the axes that may split them.
        layouts: For positions among the graph's inputs the layouts that they may have.
        allowed: For operators outside of clusters the choices that each mesh axis may take.
        forbid: Kinds of collectives that may not be used.
        forbid_inside: Kinds that may not be used in the bodies of loops either.
        greedy: Decide node by node in program order in place of solving (sharding propagation).
    """

    name: str = ""
    pins: Mapping[int, Layout] = field(default_factory=dict[int, Layout])
    input_axes: Mapping[int, frozenset[int]] = field(default_factory=dict[int, frozenset[int]])
    layouts: Mapping[int, tuple[Layout, ...]] = field(default_factory=dict[int, tuple[Layout, ...]])
    allowed: Mapping[OperatorPath, AllowedChoices] = field(
        default_factory=dict[OperatorPath, AllowedChoices]
    )
    forbid: frozenset[str] = frozenset()
    forbid_inside: frozenset[str] = frozenset()
    greedy: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class IntraOptions:
    """How to plan one graph.

    Attributes:
        objective: `time`, or `alpa`: communication only, and every dense product split over
            every mesh axis.
        memory_bytes: What one device may hold at the peak; None for no limit.
        time_limit_s: Seconds after which the solver returns what it has; infinite for no limit, so
            that the plan depends on counted work alone.
        seed: Seed of the solver.
        layouts: Layouts that inputs may have, by position; if the method's restriction leaves
            an input none of them, these win.
        strategies: Strategies that operators which decide alone may have; they win likewise.
        restriction: The method's own restrictions.
        rows_first: Whether the first of three mesh axes splits rows, in layers that no method
            restricts.
        offload: Whether state that only the update reads stays in the memory of the host.
        dump_ilp: Folder that gets every problem, as a file for `meshwise solve`.
    """

    objective: str = TIME
    memory_bytes: int | None = None
    time_limit_s: float = math.inf
    seed: int = 0
    layouts: Mapping[int, tuple[Layout, ...]] = field(default_factory=dict[int, tuple[Layout, ...]])
    strategies: Mapping[OperatorPath, frozenset[Strategy]] = field(
        default_factory=dict[OperatorPath, frozenset[Strategy]]
    )
    restriction: Restriction = Restriction()
    rows_first: bool = False
    offload: bool = False
    dump_ilp: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IntraResult:
    """Answer of `plan_graph`.

    Attributes:
        decision: The plan of the graph.
        objective_s: Objective of the decision in the problem that was solved.
        bound_s: No plan of the space is cheaper than this.
        gap: (objective - bound) / objective; 0 if both vanish, infinite without a bound.
        space: For which plans the bound holds.
        status: `optimal`, or `time limit`.
        peak_bytes: Predicted peak of one device.
        conceded: Kinds of collectives that the method forbids, but without which there is no plan.
    """

    decision: GraphDecision
    objective_s: float
    bound_s: float
    gap: float
    space: str
    status: str
    peak_bytes: int
    conceded: tuple[str, ...] = ()
