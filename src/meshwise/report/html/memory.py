"""Memory of one device of each stage over the simulated step, below the device's limit."""

from __future__ import annotations

from collections.abc import Sequence

from meshwise.plan.text.device_memory import MemoryCheck
from meshwise.report.html.markup import escaped, label, line, num, picture, rect, stage_class, ticks
from meshwise.simulate.plan import Simulation
from meshwise.simulate.timeline import MemoryStep
from meshwise.units import bytes_text, bytes_unit, seconds_text

_WIDTH, _HEIGHT = 380, 150
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 6, 24, 20
# With more changes than that, the least and the most of each column are drawn.
_MOST_STEPS = 400
_COLUMNS = 320
_PALE = 0.45
# A limit is drawn up to so many times the highest peak.
_HIGHEST = 2.5


def memory_charts(simulation: Simulation, check: MemoryCheck) -> str:
    """Return the section of the page; what does not fit is red."""
    timeline = simulation.timeline
    over = {*simulation.too_large, *check.too_large}
    most = max(timeline.peak_bytes)
    # A limit far above all that is held would flatten it to a line.
    in_view = [limit for limit in simulation.memory_bytes if limit <= _HIGHEST * most]
    top = max(most, *in_view, 1) * 1.04
    charts = [
        _chart(simulation, number, top, number in over)
        for number in range(len(simulation.memory_bytes))
    ]
    dense = any(len(steps) > _MOST_STEPS for steps in timeline.memory)
    note = (
        " Between the least (dark) and the most (light) of each moment it goes up and down with "
        "every micro-batch."
        if dense
        else ""
    )
    return (
        f"<h2>Memory over time</h2><p>Of one device of each {simulation.of_timeline} in the "
        "simulated step: what is held all the time, activations of the micro-batches in flight, "
        f"temporary values. {_line_text(simulation, len(in_view))}{note}</p>"
        '<div class="charts">' + "".join(f"<div>{chart}</div>" for chart in charts) + "</div>"
    )


def _line_text(simulation: Simulation, in_view: int) -> str:
    """Return what is said of the limits, of which the pictures show `in_view`."""
    if in_view == len(simulation.memory_bytes):
        return "The dashed line is what a device has."
    if in_view:
        return "The dashed line is what a device has, where that is not far above the picture."
    least, most = min(simulation.memory_bytes), max(simulation.memory_bytes)
    at_least = "at least " if least < most else ""
    return f"A device has {at_least}{bytes_text(least)}, far above the picture."


def _chart(simulation: Simulation, number: int, top: float, is_too_large: bool) -> str:
    timeline = simulation.timeline
    peak, limit = timeline.peak_bytes[number], simulation.memory_bytes[number]
    end = timeline.step_time_s or 1.0
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    floor = _TOP + height

    def x_of(seconds: float) -> float:
        return _LEFT + width * seconds / end

    def y_of(num_bytes: float) -> float:
        return floor - height * num_bytes / top

    parts: list[str] = []
    unit, name = bytes_unit(top)
    for value in ticks(0, top / unit, 3):
        y = y_of(value * unit)
        parts += [line(_LEFT, y, _WIDTH - _RIGHT, y), label(_LEFT - 6, y + 4, f"{value:g}", "m e")]
    parts.append(label(_LEFT - 6, _TOP - 9, name, "m e"))
    steps = timeline.memory[number]
    # What is too large is red: pale up to what a device has, full above.
    ground = _PALE if is_too_large else 1.0
    kind = "over" if is_too_large else stage_class(number)
    if len(steps) <= _MOST_STEPS:
        points = [(x_of(step.time_s), y_of(step.num_bytes)) for step in steps]
        parts.append(_area(points, x_of(end), floor, kind, ground))
    else:
        points = []
        for extreme, opacity in zip(_extremes(steps, end), (ground, ground / 2), strict=True):
            points = [(x_of(k * end / _COLUMNS), y_of(b)) for k, b in enumerate(extreme)]
            parts.append(_area(points, x_of(end), floor, kind, opacity))
    y = y_of(limit)
    if is_too_large:
        above = [(x, min(top_y, y)) for x, top_y in points]
        parts.append(_area(above, x_of(end), y, kind, 1.0))
    if y >= _TOP:
        parts.append(line(_LEFT, y, _WIDTH - _RIGHT, y, "limit"))
    title = f"{simulation.of_timeline} {number}: peak {bytes_text(peak)}"
    share = f"{peak / limit:.0%} of {bytes_text(limit)}" if limit else "no limit"
    over = " limit-text" if is_too_large else ""
    parts += [
        rect((_LEFT, 3, 12, 12), stage_class(number), "", 3),
        label(_LEFT + 18, 13, title),
        label(_WIDTH - _RIGHT, 13, share, f"m e{over}"),
        label(_LEFT, _HEIGHT - 5, "0", "m"),
        label(_WIDTH - _RIGHT, _HEIGHT - 5, seconds_text(timeline.step_time_s), "m e"),
        rect((_LEFT, _TOP, width, height), "none", f"{title}, {share}"),
    ]
    description = f"{title}, {share}; over a step of {seconds_text(timeline.step_time_s)}"
    return picture(
        f"memory{number}",
        f"Memory of {simulation.of_timeline} {number}",
        description,
        (_WIDTH, _HEIGHT),
        parts,
    )


def _area(
    points: Sequence[tuple[float, float]], end: float, floor: float, kind: str, opacity: float
) -> str:
    """Return the area under steps."""
    path = [f"M{num(points[0][0])} {num(floor)}"]
    last = ""
    for x, y in points:
        if num(y) != last:
            path.append(f"H{num(x)}V{num(y)}")
            last = num(y)
    more = "" if opacity == 1 else f' fill-opacity="{opacity}"'
    return f'<path class="{escaped(kind)}"{more} d="{"".join(path)}H{num(end)}V{num(floor)}Z"/>'


def _extremes(steps: Sequence[MemoryStep], end: float) -> tuple[list[int], list[int]]:
    """Return the least and the most bytes in each of `_COLUMNS` equal parts of the step."""
    least: list[int] = []
    most: list[int] = []
    now, at = steps[0].num_bytes, 1
    for column in range(_COLUMNS):
        until = end * (column + 1) / _COLUMNS
        low = high = now
        while at < len(steps) and steps[at].time_s < until:
            now = steps[at].num_bytes
            low, high = min(low, now), max(high, now)
            at += 1
        least.append(low)
        most.append(high)
    return least, most
