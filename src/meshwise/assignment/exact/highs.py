"""An integer program as arrays, and HiGHS, which solves it in this thread."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import highspy
import numpy as np
from numpy.typing import NDArray

from meshwise.errors import SolverError

_STATUS = {
    highspy.HighsModelStatus.kOptimal: "optimal",
    highspy.HighsModelStatus.kInfeasible: "infeasible",
    highspy.HighsModelStatus.kTimeLimit: "unfinished",
    highspy.HighsModelStatus.kInterrupt: "unfinished",
}
# Where HiGHS asks whether to go on.
_LOOKS = (
    highspy.cb.HighsCallbackType.kCallbackMipInterrupt,
    highspy.cb.HighsCallbackType.kCallbackSimplexInterrupt,
    highspy.cb.HighsCallbackType.kCallbackIpmInterrupt,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HighsProgram:
    """Columns from 0 to `upper`, the first `num_whole` of them whole; rows between two limits.

    Attributes:
        cost: Cost of one unit of each column.
        upper: Largest value of each column.
        num_whole: Number of the first columns that take whole numbers only.
        row_lower: Lower limit of each row.
        row_upper: Upper limit of each row.
        first: Where the numbers of each row begin in `column` and `value`; one entry more than
            rows.
        column: Column of each number.
        value: Each number.
    """

    cost: NDArray[np.float64]
    upper: NDArray[np.float64]
    num_whole: int
    row_lower: NDArray[np.float64]
    row_upper: NDArray[np.float64]
    first: NDArray[np.int32]
    column: NDArray[np.int32]
    value: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class HighsEffort:
    """What ends HiGHS before it has an answer.

    Attributes:
        seed: Seed of HiGHS's random numbers.
        looks: Times that HiGHS may look whether it has to end, 50 to 100 a second.  It looks at
            the same points of the same program each time, so that a run that they end can be
            repeated; a run that the clock ends cannot.
        deadline: Moment of `time.monotonic`, in seconds; infinite for none.
    """

    seed: int = 0
    looks: float = math.inf
    deadline: float = math.inf

    @property
    def seconds_left(self) -> float:
        """Return seconds until the deadline, at least 0."""
        return max(self.deadline - time.monotonic(), 0.0)

    @property
    def is_over(self) -> bool:
        """Return whether nothing may be done any more."""
        return self.looks <= 0 or time.monotonic() >= self.deadline

    def less(self, num_looks: int) -> HighsEffort:
        """Return what is left after so many looks."""
        return replace(self, looks=self.looks - num_looks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What HiGHS says.

    Attributes:
        status: "optimal", "infeasible" or "unfinished".
        bound: No solution costs less.
        values: Value of each column; empty if no solution was found.
        num_looks: Times that HiGHS looked whether it had to end.
    """

    status: str
    bound: float
    values: NDArray[np.float64]
    num_looks: int


def _model(program: HighsProgram) -> highspy.HighsLp:
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(program.cost), len(program.row_lower)
    lp.col_cost_ = program.cost
    lp.col_lower_, lp.col_upper_ = np.zeros(len(program.cost)), program.upper
    lp.row_lower_, lp.row_upper_ = program.row_lower, program.row_upper
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = program.first
    lp.a_matrix_.index_ = program.column
    lp.a_matrix_.value_ = program.value
    whole, free = highspy.HighsVarType.kInteger, highspy.HighsVarType.kContinuous
    num_free = len(program.cost) - program.num_whole
    lp.integrality_ = [whole] * program.num_whole + [free] * num_free
    return lp


def solve_program(
    program: HighsProgram, effort: HighsEffort, must_stop: Callable[[], bool]
) -> Outcome:
    """Solve a program; of a large one the root may take long beyond the limit or the stop.

    Args:
        program: The program.
        effort: What ends HiGHS.
        must_stop: Function that says whether to end; it is asked now and then, in this thread.

    Returns:
        What HiGHS found until then.

    Raises:
        SolverError: HiGHS failed.
    """
    solver = highspy.Highs()
    for name, value in (
        ("output_flag", False),
        ("threads", 1),
        ("random_seed", effort.seed),
        ("time_limit", effort.seconds_left),
        ("mip_rel_gap", 0.0),
        ("mip_abs_gap", 1e-6),
        ("mip_feasibility_tolerance", 1e-9),
        ("primal_feasibility_tolerance", 1e-9),
    ):
        solver.setOptionValue(name, value)
    solver.passModel(_model(program))
    num_looks = 0

    def look(
        _kind: object,
        _message: str,
        _said: object,
        reply: highspy.cb.HighsCallbackInput,
        _data: object,
    ) -> None:
        nonlocal num_looks
        num_looks += 1
        if num_looks >= effort.looks or must_stop():
            reply.user_interrupt = True

    solver.setCallback(look, None)
    for kind in _LOOKS:
        solver.startCallback(kind)
    solver.run()
    status = solver.getModelStatus()
    if status not in _STATUS:
        raise SolverError(f"HiGHS stopped with {solver.modelStatusToString(status)}")
    return Outcome(
        status=_STATUS[status],
        bound=float(solver.getInfo().mip_dual_bound),
        values=np.array(solver.getSolution().col_value, np.float64),
        num_looks=num_looks,
    )
