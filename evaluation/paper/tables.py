"""Figures as tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from evaluation.paper.figures import PUBLISHED_PLANS, Figure
from evaluation.paper.methods import OURS, is_above
from evaluation.paper.result import Result
from evaluation.paper.settings import Setting
from evaluation.transfers.ways import WAYS
from meshwise.resharding.cross_mesh.strategies import GATHERED, SEND_RECV
from meshwise.units import bytes_text, seconds_text

Results = Mapping[tuple[str, str], Result]
NOT_RUN = "not run"
_PETA = 1e15
_LONGEST_REASON = 160


def by_name(results: Iterable[Result]) -> dict[tuple[str, str], Result]:
    """Results by setting and method."""
    return {(r.setting, r.method): r for r in results}


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def rate_table(figure: Figure, results: Results) -> str:
    """PFLOP/s of every method in every setting."""
    head = ("setting", "GPUs", *figure.methods)
    rows = [
        (s.name, str(s.num_devices), *(_rate(results.get((s.name, m))) for m in figure.methods))
        for s in figure.settings
    ]
    return markdown(head, rows)


def _rate(result: Result | None) -> str:
    if result is None:
        return NOT_RUN
    if not result.answer.fits:
        return "no plan"
    return f"{result.flop_per_s / _PETA:.4g} ({seconds_text(result.answer.step_time_s)})"


def plan_table(figure: Figure, results: Results) -> str:
    """What each method chose, and what the paper's search chose; what was not run is left out."""
    rows: list[tuple[str, ...]] = []
    for s in figure.settings:
        found = {m: results[s.name, m] for m in figure.methods if (s.name, m) in results}
        rows += [_plan_row(s, m, result) for m, result in found.items()]
        if s.name in PUBLISHED_PLANS:
            rows.append((s.name, "the paper", "", "", "", PUBLISHED_PLANS[s.name]))
    return markdown(("setting", "method", "step, simulated", "peak", "B", "plan"), rows)


def _plan_row(setting: Setting, method: str, result: Result) -> tuple[str, ...]:
    answer = result.answer
    if not answer.fits:
        return setting.name, method, "-", "-", "-", _cell(answer.why)
    return (
        setting.name,
        method,
        seconds_text(answer.step_time_s),
        bytes_text(answer.peak_bytes),
        str(answer.num_microbatches),
        _cell(answer.chosen),
    )


def _cell(text: str) -> str:
    """One line that a table can hold."""
    line = " ".join(text.replace("|", "/").split())
    return line if len(line) <= _LONGEST_REASON else line[: _LONGEST_REASON - 3] + "..."


def planning_table(figure: Figure, results: Results) -> str:
    """Return the seconds to plan."""
    rows: list[tuple[str, ...]] = []
    for s in figure.settings:
        for m in figure.methods:
            found = results.get((s.name, m))
            if found is None:
                rows.append((s.name, str(s.num_devices), NOT_RUN, "", "", ""))
                continue
            tried = "all" if found.microbatches is None else ", ".join(map(str, found.microbatches))
            rows.append(
                (
                    s.name,
                    str(s.num_devices),
                    tried,
                    f"{found.tracing_s:.1f} s",
                    f"{found.planning_s:.1f} s",
                    f"{found.planning_cpu_s:.1f} s",
                )
            )
    head = ("setting", "GPUs", "values of B", "tracing", "planning, wall", "planning, CPU")
    return markdown(head, rows)


def way_table(figure: Figure, results: Results) -> str:
    """Seconds of a step with each way to send between stages, and what gathering saves."""
    rows: list[tuple[str, ...]] = []
    for s in figure.settings:
        for m in figure.methods:
            found = results.get((s.name, m))
            head = (s.name, str(s.num_devices), m)
            if found is None or not found.answer.by_way:
                why = NOT_RUN if found is None else "one stage" if found.answer.fits else "no plan"
                rows.append((*head, why, *[""] * (len(WAYS) + 1)))
                continue
            ways = dict(found.answer.by_way)
            seconds = [seconds_text(ways[way]) for way in WAYS]
            saved = f"{ways[SEND_RECV] / ways[GATHERED]:.3f}"
            rows.append((*head, _cell(found.answer.chosen), *seconds, saved))
    head = ("setting", "GPUs", "method", "plan", *WAYS, f"{SEND_RECV} / {GATHERED}")
    return markdown(head, rows)


def margins(figure: Figure, results: Results) -> list[tuple[str, str, float]]:
    """Setting, method and its simulated step over ours, where both have a plan."""
    found: list[tuple[str, str, float]] = []
    for s in figure.settings:
        ours = results.get((s.name, OURS))
        if ours is None or not ours.answer.fits:
            continue
        for m in figure.methods:
            other = results.get((s.name, m))
            if m != OURS and other is not None and other.answer.fits:
                found.append((s.name, m, other.answer.step_time_s / ours.answer.step_time_s))
    return found


def defects(results: Results) -> list[str]:
    """Return where a method has a plan that is simulated faster than ours: none is allowed.

    Results are compared where both tried the same numbers of micro-batches.
    """
    lines: list[str] = []
    for (setting, method), other in sorted(results.items()):
        ours = results.get((setting, OURS))
        if ours is None or method == OURS or ours.microbatches != other.microbatches:
            continue
        if not is_above(ours.answer, other.answer):
            continue
        mine = seconds_text(ours.answer.step_time_s) if ours.answer.fits else "no plan"
        lines.append(
            f"{setting}: {method} {seconds_text(other.answer.step_time_s)} ({other.answer.chosen}, "
            f"B {other.answer.num_microbatches}), ours {mine} ({ours.answer.chosen}, "
            f"B {ours.answer.num_microbatches})"
        )
    return lines
