"""The page of end-to-end runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evaluation.alpacomm.end_to_end import (
    ALL,
    ALL_GATHER,
    BOUND,
    OVERLAPPED,
    PLAIN,
    WAYS,
    run_way,
)
from evaluation.alpacomm.settings import SETTINGS
from evaluation.alpacomm.stages import PlannedStages
from evaluation.paper.plots import save_picture
from evaluation.paper.tables import markdown
from meshwise.cluster.spec import ClusterSpec
from meshwise.simulate.timeline import Timeline
from meshwise.system.atomic_file import write_atomically
from meshwise.units import bytes_text, seconds_text

# By setting and way.
Runs = Mapping[tuple[str, str], Timeline]

_INTRO = (
    "Everything on this page is **simulated**: times of stages come from plans, transfers from the "
    "simulator (4 V100 a host, 10 Gb/s between hosts, of which the catalog has 8 reached, full "
    "duplex). Each pipeline has two stages of whole hosts and its plan stays the same: what "
    "differs is how its stages send, and when."
)
_NOTES = (
    "`all-gather`, `send/recv` and `broadcast` run 1F1B and stop both stages for each transfer. "
    "What crosses a cut is taken as one tensor of rows with the layout of its largest part. "
    "`one byte` is eager-1F1B with transfers of one byte. With delayed weights the gradients of "
    "weights take half of a backward pass, and all that it keeps waits for them. Bold: more than "
    "a device has (16 GB)."
)
_PUBLISHED = (
    "1.1 times as fast as all-gather on GPT, 1.5 times on U-Transformer; at least 75 % of a run "
    "whose transfers carry one byte; on U-Transformer overlap gives 30 %, eager-1F1B another 15 %. "
    "The paper's own table of models is not at hand: GPT-1.3B and 2.6B and U-Transformers of "
    "Alpa's suite stand for it, in settings of ours."
)
_DIFFERENCES = (
    "The gain over all-gather is close to the published one for both models. Its parts differ: "
    "with two stages, 1F1B leaves the first one a single micro-batch ahead, which cannot cover a "
    "transfer there and one back, so that overlap alone gives little and eager-1F1B gives the "
    "rest; how many stages the published runs had is not at hand. Where the plan splits rows over "
    "all devices every tile is a device's own, and all ways send the same. Where devices share "
    "rows (`-tp`), send/recv sends copies; they share a host, so that a local all-gather costs "
    "next to nothing and a broadcast gains no more."
)


def simulated_runs(planned: Sequence[PlannedStages]) -> dict[tuple[str, str], Timeline]:
    """Return all ways of all pipelines."""
    return {(p.setting, name): run_way(p, way) for p in planned for name, way in WAYS.items()}


def end_to_end_page(
    planned: Sequence[PlannedStages], runs: Runs, *, with_picture: bool = False
) -> str:
    """Tables of end-to-end runs.

    Args:
        planned: The pipelines.
        runs: Of `simulated_runs`.
        with_picture: Whether the picture is there.
    """
    settings = [
        (
            p.setting,
            p.cluster,
            f"{p.num_microbatches} x {p.rows}",
            ", ".join("x".join(map(str, s.mesh)) for s in p.stages),
            f"{p.stages[0].leaves} to {p.stages[1].enters}",
            bytes_text(p.stages[0].send_bytes),
            p.plan,
        )
        for p in planned
    ]
    gains = [(p.setting, *(_ratio(runs, p, *pair) for pair in _PAIRS)) for p in planned]
    parts = [
        "# End to end: two stages, ways to send and schedules",
        _INTRO,
        "**Published:** " + _PUBLISHED,
        "![end to end](end_to_end.svg)" if with_picture else "",
        "## Gains",
        "Speed of one way over another, step times divided:",
        markdown(
            (
                "setting",
                "overlap and eager over all-gather",
                "broadcast over send/recv",
                "overlap over broadcast",
                "eager-1F1B over overlap",
                "share of one byte",
            ),
            gains,
        ),
        _DIFFERENCES,
        "## Steps",
        "Step time, and the peak memory of the worst device in brackets:",
        markdown(
            ("way", *(p.setting for p in planned)),
            [(name, *(_step(runs, p, name) for p in planned)) for name in WAYS],
        ),
        _NOTES,
        "## Settings",
        markdown(
            ("setting", "cluster", "micro-batches x rows", "meshes", "layouts", "sent", "plan"),
            settings,
        ),
        f"Planned on {', '.join(sorted({p.created for p in planned}))}.",
    ]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


# The slower way first.
_PAIRS = (
    (ALL_GATHER, ALL),
    ("send/recv", PLAIN),
    (PLAIN, OVERLAPPED),
    (OVERLAPPED, ALL),
    (BOUND, ALL),
)


def _ratio(runs: Runs, planned: PlannedStages, one: str, other: str) -> str:
    name = planned.setting
    return f"{runs[name, one].step_time_s / runs[name, other].step_time_s:.2f}"


def _step(runs: Runs, planned: PlannedStages, way: str) -> str:
    found = runs[planned.setting, way]
    peak = max(found.peak_bytes)
    memory = ClusterSpec.virtual(planned.cluster).host_at(0).device.memory_bytes
    text = bytes_text(peak)
    return f"{seconds_text(found.step_time_s)} ({f'**{text}**' if peak > memory else text})"


def write_end_to_end(
    folder: Path, planned: Sequence[PlannedStages], *, pictures: bool
) -> tuple[Path, ...]:
    """Simulate all ways and write the page.

    Args:
        folder: Where; made if it is not there.
        planned: The pipelines; nothing is written without any.
        pictures: Whether to draw, too.

    Raises:
        PlanError: pictures are wanted and matplotlib is not installed.
    """
    if not planned:
        return ()
    folder.mkdir(parents=True, exist_ok=True)
    planned = sorted(planned, key=lambda p: list(SETTINGS).index(p.setting))
    runs = simulated_runs(planned)
    drawn: tuple[Path, ...] = ()
    if pictures:
        drawn = save_picture(
            "end_to_end", folder / "end_to_end", lambda axes: _draw(axes, planned, runs)
        )
    page = folder / "end_to_end.md"
    write_atomically(page, end_to_end_page(planned, runs, with_picture=pictures))
    return (page, *drawn)


def _draw(axes: Any, planned: Sequence[PlannedStages], runs: Runs) -> None:
    width = 0.8 / len(WAYS)
    for k, name in enumerate(WAYS):
        places = [n + (k + 0.5) * width - 0.4 for n in range(len(planned))]
        speeds = [
            runs[p.setting, ALL_GATHER].step_time_s / runs[p.setting, name].step_time_s
            for p in planned
        ]
        axes.bar(places, speeds, width, label=name)
    axes.axhline(1.0, color="black", linewidth=0.5)
    axes.set_xticks(range(len(planned)), [p.setting for p in planned])
    axes.set_ylabel("speed over all-gather, simulated")
    axes.set_title("Two stages: ways to send, and schedules")
    axes.legend(loc="lower right", fontsize="small")
