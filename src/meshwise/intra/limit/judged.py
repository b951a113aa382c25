"""Choices of a problem judged by what they really hold, and what all searches for them share."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from meshwise.assignment.problem import Array, Problem, Row, Solution, objective
from meshwise.assignment.solve import solve
from meshwise.intra.expand import expand
from meshwise.intra.limit.memory_rows import MemoryRows
from meshwise.intra.network import LayoutNetwork
from meshwise.intra.shapes import local_bytes
from meshwise.intra.ties import Ties, tied_row
from meshwise.memory.peak import Peak, peak
from meshwise.plan.decision import GraphDecision


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedChoice:
    """A solution with its plan and the plan's true peak."""

    solution: Solution
    decision: GraphDecision
    peak: Peak

    @property
    def num_bytes(self) -> int:
        """The true peak of one device."""
        return self.peak.num_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """What does not change while plans of one problem are searched.

    Attributes:
        network: All decisions.
        ties: Which nodes decide together.
        problem: The problem of the ties, without rows.
        deadline: Moment of `time.monotonic` at which a search ends early; infinite where the user
            gave no limit of time.
        seed: Seed of the solver.
    """

    network: LayoutNetwork
    ties: Ties
    problem: Problem
    deadline: float
    seed: int
    _writer: list[MemoryRows] = field(default_factory=list[MemoryRows])

    @property
    def seconds_left(self) -> float:
        """Seconds until the deadline, at least 0."""
        return max(self.deadline - time.monotonic(), 0.0)

    @property
    def is_late(self) -> bool:
        """Whether the deadline has passed."""
        return time.monotonic() > self.deadline

    def of_choice(self, choice: Sequence[int]) -> tuple[GraphDecision, Peak]:
        """The plan of a choice and its true peak."""
        decision = expand(self.network, self.ties.spread(tuple(choice)))
        return decision, peak(self.network.graph, decision, self.network.mesh)

    def answer(self, choice: Sequence[int]) -> JudgedChoice:
        """A choice as an answer without a bound."""
        decision, high = self.of_choice(choice)
        cost = objective(self.problem, choice)
        solution = Solution(choice=tuple(choice), cost=cost, bound=0.0, status="")
        return JudgedChoice(solution=solution, decision=decision, peak=high)

    def row_of(self, high: Peak) -> Row:
        """What is live at a peak, as a row without a limit."""
        if not self._writer:
            self._writer.append(MemoryRows(self.network))
        return tied_row(self._writer[0].row_of(high.buffers), self.ties)

    def solve_free(self, problem: Problem) -> tuple[int, ...]:
        """The choice of a problem without rows that is no question of its own; empty if none."""
        return solve(problem, time_limit_s=self.seconds_left, seed=self.seed, exact=False).choice

    @property
    def num_operators(self) -> int:
        """Operators that judging a choice looks at."""
        return sum(len(region.graph.operators) for region in self.network.regions)

    def input_bytes(self) -> list[Array]:
        """Bytes of the inputs, which stay for the whole step, per node and choice."""
        network, sizes = self.network, self.network.mesh.sizes
        held = [np.zeros(len(costs)) for costs in self.problem.costs]
        for t in set(network.graph.inputs) - network.inputs_apart:
            u = network.maker[0, t]
            tensor = network.graph.tensors[t]
            held[self.ties.class_of[u]] += np.array(
                [local_bytes(tensor, w, sizes) for w in network.nodes[u].layouts], dtype=np.float64
            )
        return held
