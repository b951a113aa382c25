"""Memory that the search does not count, and what follows if there is no room for it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from meshwise.errors import InfeasibleError
from meshwise.plan.stage import Stage, mesh_peaks
from meshwise.schedules.schedule import Schedule
from meshwise.units import bytes_text, counted


class UnsearchedMemoryError(InfeasibleError):
    """There is no room for what the search did not count.

    Attributes:
        missing_share: Of the memory of a device, what a stage needs beyond it.
        least_s: Seconds that a step would take, the less of what formula and simulation say.
        spare_share: Of the memory, what the stages leave free by the count of the search.  If less
            is to be left free, the search finds the same stages again.
    """

    def __init__(self, text: str, missing_share: float, least_s: float, spare_share: float) -> None:
        """Say how much is missing."""
        super().__init__(text)
        self.missing_share = missing_share
        self.least_s = least_s
        self.spare_share = spare_share


class NamedMemoryError(InfeasibleError):
    """Nothing fits, and the text names memory with which a search finds something.

    Attributes:
        text: What there is.
        num_bytes: That memory, of a device; it may be too little for what the search did not count.
    """

    def __init__(self, text: str, num_bytes: int, found: str = "") -> None:
        """Say what there is, with how much there would be a pipeline, and which."""
        enough = f"With {bytes_text(num_bytes)} a device (memory_bytes={num_bytes}) there is one"
        super().__init__(f"{text}. {enough}{found and f': {found}'}")
        self.text, self.num_bytes = text, num_bytes


def check_room(
    stages: Sequence[Stage],
    table: Schedule,
    changing: Collection[int],
    least_s: float,
    spare_share: float,
) -> None:
    """Check that there is room for what the search did not count.

    Args:
        stages: The stages, with all that they hold.
        table: Their schedule.
        changing: The stages that change the layout of values of other layers.
        least_s: Seconds of a step of theirs, the less of what formula and simulation say.
        spare_share: Of the memory, what they leave free by the count of the search.

    Raises:
        UnsearchedMemoryError: there is none.
    """
    held, used = [s.held_bytes for s in stages], [s.temporary_bytes for s in stages]
    peaks = mesh_peaks(table.mesh_of_stage, held, used)
    for number, stage in enumerate(stages):
        peak, has = peaks[table.mesh_of_stage[number]], stage.memory_bytes
        reasons = list(_reasons(stage, is_changing=number in changing))
        if reasons and peak > has:
            raise UnsearchedMemoryError(
                f"stage {number} needs {bytes_text(peak)} a device under schedule {table.name}, "
                f"and there are {bytes_text(has)}: {'; '.join(reasons)}",
                peak / has - 1.0,
                least_s,
                spare_share,
            )


def _reasons(stage: Stage, *, is_changing: bool) -> list[str]:
    """Return what a stage holds that the search did not count."""
    found: list[str] = []
    late = stage.weights
    if late is not None:
        what = (
            f"wait for {counted(late.waiting, 'micro-batch')}, with {bytes_text(late.held_bytes)} "
            "each"
            if late.waiting
            else f"are apart, with {bytes_text(stage.temporary_bytes)} of temporary values"
        )
        found.append(
            f"gradients of weights {what}; a schedule that computes them with the gradients of "
            "activations, as 1f1b, needs no room for that"
        )
    if stage.waiting_bytes:
        found.append(
            f"{bytes_text(stage.waiting_bytes)} of values wait there for the layer that reads them"
        )
    if is_changing:
        found.append("values that skip layers are held there in two layouts while they are changed")
    return found
