"""Dims that a plan pads to sizes which the mesh divides."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddedDim:
    """A class of dims that run over the same indices.

    Attributes:
        number: Which of the step's classes of dims, in the order in which the trace finds them.
        size: Size of the dims in the user's step.
        padded_size: Size of the dims where they are padded.
        where: For display: arguments that have such a dim, as `0/params/embedding dim 0`.
    """

    number: int
    size: int
    padded_size: int
    where: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Padding:
    """What a plan pads, and why.

    Attributes:
        dims: What is padded; empty if nothing is.
        unpadded_step_time_s: Predicted time of a step of the best plan found that pads nothing;
            None if no such plan fits, or if nothing is padded.
    """

    dims: tuple[PaddedDim, ...] = ()
    unpadded_step_time_s: float | None = None


NOT_PADDED = Padding()
