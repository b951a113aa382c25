"""The schedules that a user can name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from meshwise.errors import PlanError
from meshwise.schedules import (
    eager_one_f_one_b,
    gpipe,
    inference,
    interleaved,
    one_f_one_b,
    zero_bubble_h1,
)
from meshwise.schedules.delay import with_delays
from meshwise.schedules.schedule import Schedule

Builder = Callable[[int, int, int], Schedule]

SCHEDULES: Mapping[str, Builder] = MappingProxyType(
    {
        gpipe.NAME: gpipe.gpipe,
        one_f_one_b.NAME: one_f_one_b.one_f_one_b,
        eager_one_f_one_b.NAME: eager_one_f_one_b.eager_one_f_one_b,
        interleaved.NAME: interleaved.interleaved,
        zero_bubble_h1.NAME: zero_bubble_h1.zero_bubble_h1,
        inference.NAME: inference.inference,
    }
)


def make_schedule(
    name: str,
    *,
    num_stages: int,
    num_microbatches: int,
    num_meshes: int | None = None,
    delays: Sequence[int] = (),
) -> Schedule:
    """The schedule of that name.

    Args:
        name: One of `SCHEDULES`.
        num_stages: Stages of the pipeline; of interleaved 1F1B all chunks of all meshes.
        num_microbatches: Micro-batches of one step.
        num_meshes: Meshes; by default one a stage.
        delays: For each mesh by how many half steps its gradients of weights are delayed; none for
            the schedule as it is.

    Raises:
        PlanError: No schedule of that name, or not for such sizes or delays.
    """
    if name not in SCHEDULES:
        raise PlanError(f"no schedule is named {name!r}; known are {', '.join(SCHEDULES)}")
    meshes = num_stages if num_meshes is None else num_meshes
    made = SCHEDULES[name](num_stages, num_microbatches, meshes)
    return with_delays(made, delays) if delays else made
