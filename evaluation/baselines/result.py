"""What a baseline answers, and how the best of its candidates is found with the simulator."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from meshwise.baselines.pipelines.simulated import SimulatedPipeline, simulate
from meshwise.cluster.spec import ClusterSpec
from meshwise.plan.stage import Remat


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenStage:
    """One stage of a baseline's plan; with interleaving one chunk.

    Attributes:
        first_layer: First layer.
        last_layer: Last layer, included.
        submesh: Hosts, devices of each.
        mesh: Sizes of the logical mesh.
        remat: What the backward pass computes again.
    """

    first_layer: int
    last_layer: int
    submesh: tuple[int, int]
    mesh: tuple[int, ...]
    remat: Remat


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One point of a grid with its best stages.

    Attributes:
        label: The point, in words.
        objective_s: T of the stage construction.
        stages: In the order of the layers.
        pipeline: For the simulator.
    """

    label: str
    objective_s: float
    stages: tuple[ChosenStage, ...]
    pipeline: SimulatedPipeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A point of a grid, or a part of the grid, without a plan.

    Attributes:
        label: Which.
        why: What is wrong with it.
    """

    label: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One point that was tried.

    Attributes:
        label: The point, in words.
        objective_s: T of the stage construction; infinite without a plan.
        step_time_s: As simulated; None where no simulation was needed to see that it is slower
            than the best, or where there is no plan.
        peak_bytes: As simulated, of the worst device; None likewise.
        why: Why there is no plan; empty if there is one.
    """

    label: str
    objective_s: float
    step_time_s: float | None = None
    peak_bytes: int | None = None
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineResult:
    """The best plan of a baseline.

    Attributes:
        name: Of the baseline.
        fits: Whether it has a plan at all.
        step_time_s: As simulated; infinite if nothing fits.
        objective_s: T of the stage construction; infinite likewise.
        peak_bytes: As simulated, of the worst device; 0 if nothing fits.
        chosen: The point of its grid, in words; empty if nothing fits.
        num_microbatches: B; 0 if nothing fits.
        stages: In the order of the layers.
        tried: The whole grid.
        why: Why nothing fits; empty if something does.
    """

    name: str
    fits: bool
    step_time_s: float
    objective_s: float
    peak_bytes: int
    chosen: str
    num_microbatches: int
    stages: tuple[ChosenStage, ...]
    tried: tuple[Tried, ...]
    why: str = ""


def best_of(
    name: str, found: Iterable[Candidate | Refused], cluster: ClusterSpec, memory_bytes: float
) -> BaselineResult:
    """Return the candidate with the least simulated time among those that fit as simulated.

    Args:
        name: Of the baseline.
        found: All points of its grid.
        cluster: Where it runs.
        memory_bytes: Of one device.
    """
    points = list(found)
    tried = {
        i: Tried(label=p.label, objective_s=math.inf, why=p.why)
        for i, p in enumerate(points)
        if isinstance(p, Refused)
    }
    candidates = [(i, p) for i, p in enumerate(points) if isinstance(p, Candidate)]
    best: tuple[float, int, Candidate] | None = None
    for i, candidate in sorted(candidates, key=lambda item: (least_s(item[1].pipeline), item[0])):
        if best is not None and least_s(candidate.pipeline) >= best[0]:
            tried[i] = Tried(label=candidate.label, objective_s=candidate.objective_s)
            continue
        timeline = simulate(candidate.pipeline, cluster)
        peak = max(timeline.peak_bytes)
        is_too_large = peak > memory_bytes
        tried[i] = Tried(
            label=candidate.label,
            objective_s=candidate.objective_s,
            step_time_s=timeline.step_time_s,
            peak_bytes=peak,
            why="the simulated peak does not fit" if is_too_large else "",
        )
        if not is_too_large and (best is None or timeline.step_time_s < best[0]):
            best = (timeline.step_time_s, peak, candidate)
    rows = tuple(tried[i] for i in range(len(points)))
    if best is None:
        return _nothing(name, rows)
    step_time_s, peak, candidate = best
    return BaselineResult(
        name=name,
        fits=True,
        step_time_s=step_time_s,
        objective_s=candidate.objective_s,
        peak_bytes=peak,
        chosen=candidate.label,
        num_microbatches=candidate.pipeline.num_microbatches,
        stages=candidate.stages,
        tried=rows,
    )


def least_s(pipeline: SimulatedPipeline) -> float:
    """Return what no simulation goes below: the work of the busiest mesh."""
    count = len(pipeline.meshes)
    work = [0.0] * count
    for k, chunk in enumerate(pipeline.chunks):
        work[k % count] += (
            pipeline.num_microbatches * (chunk.microbatch_s + chunk.gather_s) + chunk.once_s
        )
    return max(work)


def _nothing(name: str, tried: tuple[Tried, ...]) -> BaselineResult:
    reasons = list(dict.fromkeys(f"{t.label}: {t.why}" for t in tried if t.why))
    return BaselineResult(
        name=name,
        fits=False,
        step_time_s=math.inf,
        objective_s=math.inf,
        peak_bytes=0,
        chosen="",
        num_microbatches=0,
        stages=(),
        tried=tried,
        why="; ".join(reasons) or "its grid has no point on this cluster",
    )
