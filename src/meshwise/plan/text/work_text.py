"""The dense operators and the collectives of a plan as tables; stages share rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from meshwise.plan.counts.collectives import collective_sums
from meshwise.plan.record import PlanRecord
from meshwise.plan.text.columns import SHORT_ROWS, largest_rows, table, way_text
from meshwise.plan.text.names import numbers_text
from meshwise.units import bytes_text, flop_text, seconds_text

_TWO_NUMBERS = "two numbers: the least and the most of these stages; the full text has each stage"
# Of a dense operator: source line and way.
_Way: TypeAlias = tuple[str, str]


def dense_lines(plan: PlanRecord, *, full: bool = False) -> list[str]:
    """Return the dense operators with the layouts that their strategies make.

    Args:
        plan: The plan.
        full: Whether each stage has rows of its own.
    """
    # Of a stage alone each operator, else for each way the sums of each stage.
    each: list[tuple[_Way, int, int, float]] = []
    sums: dict[_Way, dict[int, tuple[int, float]]] = {}
    for number, stage in enumerate(plan.stages):
        for item in stage.dense:
            way = (item.where, way_text(item.operands, item.results, stage.mesh.names))
            each.append((way, number, item.count, item.device_flop))
            of_way = sums.setdefault(way, {})
            count, flop = of_way.get(number, (0, 0.0))
            of_way[number] = (count + item.count, flop + item.device_flop)
    several = len(plan.stages) > 1
    groups = [(way, {number: (count, flop)}) for way, number, count, flop in each]
    if several and not full:
        groups = list(sums.items())
    found: list[tuple[float, tuple[str, ...]]] = []
    for (where, way), of_stage in groups:
        counts = [str(count) for count in sorted(count for count, _ in of_stage.values())]
        flops = [flop_text(flop) for flop in sorted(flop for _, flop in of_stage.values())]
        stages = [numbers_text(of_stage)] if several else []
        row = (where, *stages, _range(counts), way, _range(flops))
        found.append((sum(flop for _, flop in of_stage.values()), row))
    if not found:
        return []
    is_short = full or len(found) <= SHORT_ROWS
    rows = [row for _, row in found] if is_short else largest_rows(found, "FLOP")
    stages, side = (("stages",), "l") if several else ((), "")
    header = ("operator", *stages, "count", "operands -> result", "a device")
    return table(header, rows, f"l{side}rwr") + _note(groups)


def _note(groups: Iterable[tuple[object, Mapping[int, object]]]) -> list[str]:
    """Return what two numbers of a row mean, if one has two."""
    differ = any(len(set(of_stage.values())) > 1 for _, of_stage in groups)
    return [_TWO_NUMBERS] if differ else []


def _range(texts: Sequence[str]) -> str:
    """Return the least and the most, as `6.6-13.2 TFLOP`; the unit once."""
    first, last = texts[0], texts[-1]
    if first == last:
        return first
    number, space, unit = first.partition(" ")
    return f"{number if last.endswith(space + unit) else first}-{last}"


def collective_lines(plan: PlanRecord, *, full: bool = False) -> list[str]:
    """Return the sums by kind and axes, dearest first.

    Args:
        plan: The plan.
        full: Whether each stage has rows of its own; else stages share a row.
    """
    several = len(plan.stages) > 1
    sums = collective_sums(plan.collectives, [stage.mesh for stage in plan.stages])
    groups: dict[tuple[str, tuple[str, ...], int, int], dict[int, tuple[int, int, float]]] = {}
    for (stage, kind, axes, size), found in sums.items():
        key = (kind, axes, size, stage if full else 0)
        groups.setdefault(key, {})[stage] = found
    if not groups:
        return []
    rows: list[tuple[str, ...]] = []
    ordered = sorted(groups.items(), key=lambda x: (-max(s for _, _, s in x[1].values()), x[0]))
    for (kind, axes, size, _), of_stage in ordered:
        counts, sizes, seconds = map(sorted, zip(*of_stage.values(), strict=True))
        rows.append(
            (
                kind,
                *([numbers_text(of_stage)] if several else []),
                " ".join(axes),
                str(size),
                _range([str(count) for count in counts]),
                _range([bytes_text(num_bytes) for num_bytes in sizes]),
                _range([seconds_text(time_s) for time_s in seconds]),
            )
        )
    values = list(sums.values())
    total = (
        str(sum(count for count, _, _ in values)),
        bytes_text(sum(size for _, size, _ in values)),
        seconds_text(math.fsum(time_s for _, _, time_s in values)),
    )
    rows.append(("all", *(["all together"] if several else []), "", "", *total))
    stages, side = (("stages",), "l") if several else ((), "")
    header = ("kind", *stages, "axes", "group", "count", "bytes", "predicted")
    return table(header, rows, f"l{side}lrrrr") + _note(groups.items())
