"""What a cut into stages costs; states the objective, and knows nothing of how it is minimised.

Stages 1..n with time t_i of a micro-batch (`busy_s`: computation, and gathering what its
neighbours send), fill f_i <= t_i (`fill_s` of the schedule; f_i = t_i but for
interleaved and zero-bubble schedules), B micro-batches, and x_i the transfer over the boundary
after stage i (x_n = 0; `_transfer_s`).

    T =   sum_i f_i                                 fill and drain of the stages      (`fill_s`)
        + sum_i x_i                                 the same of the boundaries        (`transfer_s`)
        + max_i [(B - 1) slot_i + (t_i - f_i)]      steady state                      (`steady_s`)
        + max_i once_i                              gradients, optimizer              (`once_s`)

    slot_i = max(t_i, y_i) if the schedule hides transfers, else t_i + y_i            (`_slot_s`)
    y_i = (x_(i-1) + x_i) / 2

With f = t, x = 0 and once = 0 this is eq. 2, T = sum_i t_i + (B - 1) max_j t_j; so it is for a
problem of `as_alpa`.

x holds both directions.  In the steady state of 1F1B two neighbours exchange an activation and a
gradient at once, in opposite directions of full-duplex links, so that each of them stops for half
of x once a micro-batch: a stage for half of what passes at both its ends.

A schedule that hides transfers keeps to this while each x is well below t, up to 3/4 of it among
equal stages; beyond, round trips with too few micro-batches in flight set the slot: T is too low.

Memory, for every stage, with s = n - i + 1 stages from it to the end (`memory_bytes`):

    resident + in_flight(s) * microbatch_bytes + temporary <= memory of a device of its submesh.

Source: Alpa eqs. 2 and 5; docs/decisions/0010.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwise.inter.stages.stage_problem import StageProblem, StageSpan


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """The time of a step and its parts, in seconds.

    Attributes:
        fill_s: Sum over stages.
        transfer_s: Sum over boundaries.
        steady_s: The bottleneck's micro-batches beyond the first.
        once_s: The longest of what is done once.
    """

    fill_s: float
    transfer_s: float
    steady_s: float
    once_s: float

    @property
    def total_s(self) -> float:
        """T."""
        return self.fill_s + self.transfer_s + self.steady_s + self.once_s


def step_time(problem: StageProblem, stages: Sequence[StageSpan]) -> StepTime:
    """Return the parts of T for given stages; memory and devices are not looked at.

    Args:
        problem: What the stages are chosen from.
        stages: All stages, in order.
    """
    costs = problem.costs
    fill, transfer, once = 0.0, 0.0, 0.0
    loads: list[float] = []
    # From the last stage to the first, as the stage construction adds.
    for i in reversed(range(len(stages))):
        stage = stages[i]
        at = stage.place
        gather_s = 0.0 if costs.gather_s is None else float(costs.gather_s[at])
        whole = float(costs.microbatch_s[at]) + gather_s
        shown = float(problem.schedule.fill_s(np.array(whole)))
        passed = _transfer_s(problem, stages, i)
        fill += shown
        transfer += passed
        at_ends = 0.5 * passed + 0.5 * _transfer_s(problem, stages, i - 1)
        loads.append((problem.num_microbatches - 1) * _slot_s(problem, whole, at_ends))
        loads[-1] += whole - shown
        once = max(once, float(costs.once_s[at]))
    return StepTime(fill_s=fill, transfer_s=transfer, steady_s=max(loads), once_s=once)


def busy_s(problem: StageProblem, stages: Sequence[StageSpan]) -> float:
    """Return the seconds for which the busiest stage computes in a step: no schedule takes less.

    Args:
        problem: What the stages are chosen from.
        stages: All stages, in order.
    """
    costs, found = problem.costs, list[float]()
    for place in (stage.place for stage in stages):
        gather_s = 0.0 if costs.gather_s is None else float(costs.gather_s[place])
        loop_s = problem.num_microbatches * (float(costs.microbatch_s[place]) + gather_s)
        found.append(loop_s + float(costs.once_s[place]))
    return max(found)


def _transfer_s(problem: StageProblem, stages: Sequence[StageSpan], index: int) -> float:
    """Over the boundary after a stage; none is before the first and after the last."""
    if problem.transfer_s is None or index < 0 or index == len(stages) - 1:
        return 0.0
    left, right = stages[index], stages[index + 1]
    return float(problem.transfer_s[left.last_layer, left.submesh, right.submesh])


def _slot_s(problem: StageProblem, microbatch_s: float, transfer_s: float) -> float:
    if problem.schedule.hides_transfers:
        return max(microbatch_s, transfer_s)
    return microbatch_s + transfer_s
