"""What fills the memory of a device when it holds most."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakPart:
    """Buffers of one kind at the peak of one device.

    Attributes:
        role: `input` (arguments of the step, and results that take their place), `value` (made on
            the way, kept for later), `copy` (a value in another layout) or `rest`.
        where: Path of the arguments, or source line of the operator; empty for the rest.
        count: Number of buffers; 0 for the rest.
        num_bytes: Their bytes on one device.
    """

    role: str
    where: str
    count: int
    num_bytes: int
