"""An integer program as arrays, and HiGHS, which solves it in this thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import highspy
import numpy as np
from numpy.typing import NDArray

from meshwise.errors import SolverError

_STATUS = {
    highspy.HighsModelStatus.kOptimal: "optimal",
    highspy.HighsModelStatus.kInfeasible: "infeasible",
    highspy.HighsModelStatus.kTimeLimit: "time limit",
    highspy.HighsModelStatus.kInterrupt: "time limit",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HighsProgram:
    """Columns from 0 to `upper`, the first `num_whole` of them whole; rows between two limits.

    Attributes:
        cost: Of each column.
        upper: Of each column.
        num_whole: Columns that take whole numbers only.
        row_lower: Of each row.
        row_upper: Of each row.
        first: Of each row, where its numbers begin in `column` and `value`; one more at the end.
        column: Of each number.
        value: Of each number.
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
class Outcome:
    """What HiGHS says.

    Attributes:
        status: "optimal", "infeasible" or "time limit".
        bound: No solution costs less.
        values: Of the columns; empty if no solution was found.
    """

    status: str
    bound: float
    values: NDArray[np.float64]


def solve_program(
    program: HighsProgram, *, time_limit_s: float, seed: int, must_stop: Callable[[], bool]
) -> Outcome:
    """Solve a program; of a large one the root may take long beyond the limit or the stop.

    Args:
        program: The program.
        time_limit_s: Wall time, in seconds.
        seed: Of HiGHS.
        must_stop: Is asked now and then, in this thread.

    Raises:
        SolverError: HiGHS failed.
    """
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
    solver = highspy.Highs()
    for name, value in (
        ("output_flag", False),
        ("threads", 1),
        ("random_seed", seed),
        ("time_limit", time_limit_s),
        ("mip_rel_gap", 0.0),
        ("mip_abs_gap", 1e-6),
        ("mip_feasibility_tolerance", 1e-9),
        ("primal_feasibility_tolerance", 1e-9),
    ):
        solver.setOptionValue(name, value)
    solver.passModel(lp)
    _heed(solver, must_stop)
    solver.run()
    status = solver.getModelStatus()
    if status not in _STATUS:
        raise SolverError(f"HiGHS stopped with {solver.modelStatusToString(status)}")
    return Outcome(
        status=_STATUS[status],
        bound=float(solver.getInfo().mip_dual_bound),
        values=np.array(solver.getSolution().col_value, np.float64),
    )


def _heed(solver: Any, must_stop: Callable[[], bool]) -> None:
    """Let HiGHS ask now and then, and end when it has to."""

    def look(_kind: Any, _message: str, _said: Any, reply: Any, _data: Any) -> None:
        if must_stop():
            reply.user_interrupt = True

    solver.setCallback(look, None)
    for kind in ("kCallbackMipInterrupt", "kCallbackSimplexInterrupt", "kCallbackIpmInterrupt"):
        solver.startCallback(getattr(highspy.cb.HighsCallbackType, kind))
