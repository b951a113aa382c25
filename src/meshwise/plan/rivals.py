"""What other choices would cost: rivals of what a plan chose, and the price of memory.

Both are differences of whole plans, found by planning again with one choice forced.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshwise.graph.layout import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How an argument lies, or a dense operator runs.

    Attributes:
        operands: Layouts in which the operands enter; empty for an argument.
        results: Layouts that are left; of an argument its own.
    """

    operands: tuple[Layout, ...]
    results: tuple[Layout, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """The best plan in which one choice is another.

    Attributes:
        what: Path pattern of arguments, as in `pins`, or kind and source line of operators.
        count: Arguments or operators that are forced together.
        chosen: What the plan chose.
        rival: What they all take in the best plan in which none takes `chosen`; None if there is
            no such plan.
        step_time_s: Step time of that plan; None without one.
        status: How the solver ended there: `optimal`, or the step time is an upper bound.
    """

    what: str
    count: int
    chosen: Way
    rival: Way | None
    step_time_s: float | None
    status: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPrice:
    """The plan with more memory.

    Attributes:
        more_bytes: So much more than the limit of the plan on each device.
        step_time_s: Step time of the best plan then.
        peak_bytes: What it uses.
        status: How the solver ended there.
    """

    more_bytes: int
    step_time_s: float
    peak_bytes: int
    status: str
