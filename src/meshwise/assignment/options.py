"""What a caller of the solver of instances may ask for, beside the problem."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from meshwise.assignment.answer import Progress
from meshwise.assignment.exact.small_problem import SMALL_COLUMNS


@dataclass(frozen=True, slots=True, kw_only=True)
class SolverOptions:
    """How the solver works.

    Attributes:
        small_columns: Number of costs up to which a problem is first given to HiGHS whole.
        counted: Whether one thread works in turns of fixed length and ends after a counted amount
            of work, so that the answer is the same each time unless the time limit comes first.
            If not, two threads or more work side by side until the time limit.
        brief: Whether to end after the first try of a proof, which takes a bounded amount of work.
    """

    small_columns: int = SMALL_COLUMNS
    counted: bool = False
    brief: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """How the caller watches the solver and ends it.

    Attributes:
        report: Function that is told of progress now and then, in the calling thread.
        interrupt: Event that ends the search when it is set: the best so far is the answer.
        wait_for_kernels: Function that `kernels.background.compiling` gives, if the caller has
            begun to compile the kernels.
    """

    report: Callable[[Progress], object] | None = None
    interrupt: threading.Event = field(default_factory=threading.Event)
    wait_for_kernels: Callable[[float], bool] | None = None
