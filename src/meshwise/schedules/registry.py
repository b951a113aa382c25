"""The schedules that there are, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from meshwise.errors import PlanError
from meshwise.schedules.delay import with_delays
from meshwise.schedules.dual_pipe_v import DUAL_PIPE_V
from meshwise.schedules.eager_one_f_one_b import EAGER
from meshwise.schedules.gpipe import GPIPE
from meshwise.schedules.inference import INFERENCE
from meshwise.schedules.interleaved import Interleaved
from meshwise.schedules.one_f_one_b import ONE_F_ONE_B
from meshwise.schedules.pipeline_schedule import PipelineSchedule
from meshwise.schedules.schedule import Schedule
from meshwise.schedules.zero_bubble_h1 import ZERO_BUBBLE
from meshwise.schedules.zero_bubble_v import ZERO_BUBBLE_V

# Of equals the first is taken.
_ROWS: tuple[PipelineSchedule, ...] = (
    ONE_F_ONE_B,
    GPIPE,
    EAGER,
    ZERO_BUBBLE,
    Interleaved(chunks=2, hides_transfers=True),
    ZERO_BUBBLE_V,
    DUAL_PIPE_V,
    replace(ONE_F_ONE_B, hides_transfers=True, delays_weights=True),
    replace(EAGER, delays_weights=True),
    INFERENCE,
)

SCHEDULES: Mapping[str, PipelineSchedule] = MappingProxyType({row.choice: row for row in _ROWS})

# What is searched unless it is told otherwise: all that train, but for GPipe, which is never faster
# than eager 1F1B and holds more.
SEARCHED: tuple[PipelineSchedule, ...] = tuple(
    row for row in _ROWS if not row.forward_only and row is not GPIPE
)

# In place of a name: all of them, planned in turns, the fastest by simulation.
ALL = "all"


def choices() -> dict[str, PipelineSchedule]:
    """Return the schedules that a user can ask for, by name: those that train."""
    return {name: row for name, row in SCHEDULES.items() if not row.forward_only}


def tables() -> dict[str, PipelineSchedule]:
    """Return the schedules that a plan can name: those that do not delay gradients of weights."""
    return {row.name: row for row in SCHEDULES.values() if not row.delays_weights}


def is_forward_only(name: str) -> bool:
    """Return whether a schedule has no backward pass.

    Args:
        name: A name of `tables`, or another one, which is that of no schedule.
    """
    row = tables().get(name)
    return row is not None and row.forward_only


def named(name: str) -> tuple[PipelineSchedule, ...]:
    """Return the schedule of a name, or all.

    Args:
        name: A name of `choices`, or `ALL`.
    """
    return tuple(choices().values()) if name == ALL else (choices()[name],)


def searched_together(schedules: Sequence[PipelineSchedule]) -> list[tuple[PipelineSchedule, ...]]:
    """Return schedules in groups that one search can choose from.

    The search knows nothing of gradients of weights apart, which take time and memory of their own,
    nor of several stages on a mesh: such schedules stand alone, those of several stages last, and
    first those with delays, which are the fastest most often: what follows has more to beat.
    Those that hide transfers and those that do not are searched apart: where transfers take longer
    than computation, what is predicted of the first is too low (`inter.stages.objective`), and only
    simulated steps can be compared.

    Args:
        schedules: The schedules to choose from.
    """
    apart = [s for s in schedules if s.chunks > 1 or s.splits_backward]
    plain = [s for s in schedules if s not in apart]
    together = (tuple(s for s in plain if s.hides_transfers == hides) for hides in (False, True))
    apart.sort(key=lambda s: (s.chunks, not s.delays_weights))
    return [*filter(None, together), *((s,) for s in apart)]


def make_schedule(
    name: str,
    *,
    num_stages: int,
    num_microbatches: int,
    num_meshes: int | None = None,
    delays: Sequence[int] = (),
) -> Schedule:
    """Return the table of the schedule of that name.

    Args:
        name: A name of `tables`.
        num_stages: Stages of the pipeline; of interleaved 1F1B all chunks of all meshes.
        num_microbatches: Micro-batches of one step.
        num_meshes: Meshes; by default one a stage.
        delays: For each mesh by how many half steps its gradients of weights are delayed; none for
            the schedule as it is.

    Raises:
        PlanError: No schedule has that name, or it does not allow such sizes or delays.
    """
    known = tables()
    if name not in known:
        raise PlanError(f"no schedule is named {name!r}; known are {', '.join(known)}")
    meshes = num_stages if num_meshes is None else num_meshes
    table = known[name].table(num_stages, num_microbatches, meshes)
    return with_delays(table, delays) if delays else table
