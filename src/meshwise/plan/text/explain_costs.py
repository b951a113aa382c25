"""Costs of a plan as text: where the seconds go, what other choices and more memory would cost."""

from __future__ import annotations

from collections.abc import Sequence

from meshwise.plan.counts.collectives import collective_s
from meshwise.plan.counts.contents import pattern
from meshwise.plan.record import ONE_PROGRAM, PlanRecord
from meshwise.plan.rivals import Rival
from meshwise.plan.text.columns import SHORT_ROWS, table, way_text
from meshwise.schedules.registry import is_forward_only
from meshwise.units import bytes_text, seconds_text

# A smaller share of a step is rounding.
_NOTHING = 1e-4
# Operators and arguments that take such a share of the seconds together have one row.
_SMALL = 0.01
# A row: what, seconds of computation, seconds of memory traffic, seconds by kind of collective.
Row = tuple[str, float, float, dict[str, float]]


def costs(plan: PlanRecord, *, full: bool = False) -> list[str]:
    """Return the seconds of operators and arguments, dearest first, and of all else.

    Args:
        plan: The plan.
        full: Whether each has its row; else those that take least share one.
    """
    rows: list[Row] = [
        (item.where, item.compute_s, item.memory_s, dict(item.communication))
        for stage in plan.stages
        for item in stage.dense
    ]
    rows += [(x.where, 0.0, x.seconds, {}) for stage in plan.stages for x in stage.others]
    rows += _argument_rows(plan)
    total: dict[str, float] = {}
    for item in plan.collectives:
        each_s = collective_s(item, plan.stages[item.stage].mesh)
        total[item.kind] = total.get(item.kind, 0.0) + item.count * each_s
    left = {k: t - sum(row[3].get(k, 0.0) for row in rows) for k, t in total.items()}
    left = {k: max(t, 0.0) for k, t in left.items()}
    all_s = busy_s(plan)
    rest_s = all_s - sum(map(_seconds, rows)) - sum(left.values())
    kinds = sorted({*total, *(kind for row in rows for kind in row[3])})
    together = sorted(_by_place(rows), key=lambda row: -_seconds(row))
    shown = together if full else _dearest(together)
    cells = [_cells(row, kinds) for row in shown]
    # In older files no operators but dense ones are known one by one.
    is_divided = any(stage.others for stage in plan.stages)
    rest = seconds_text(rest_s) if rest_s > _NOTHING * all_s else ""
    other = ("all else" if is_divided else "all other operators", "", rest)
    last = (*other, *(seconds_text(left[k]) if left.get(k) else "" for k in kinds))
    if any(last[1:]):
        cells.append(last)
    return table(("of", "compute", "memory", *kinds), cells, "l" + "r" * (2 + len(kinds)))


def _dearest(rows: Sequence[Row]) -> list[Row]:
    """Return the first rows, and the sum of the last, which take a small share together."""
    limit = _SMALL * sum(map(_seconds, rows))
    few, left = len(rows), 0.0
    while few and left + _seconds(rows[few - 1]) <= limit:
        few -= 1
        left += _seconds(rows[few])
    few = min(few, SHORT_ROWS)
    rest = [(f"{len(rows) - few} others", *row[1:]) for row in rows[few:]]
    return [*rows[:few], *_by_place(rest)] if len(rest) > 1 else list(rows)


def _by_place(rows: Sequence[Row]) -> list[Row]:
    """Return the sums of rows of one place, as of stages that are alike."""
    sums: dict[str, Row] = {}
    for what, compute_s, memory_s, moves in rows:
        _, compute, memory, before = sums.get(what, (what, 0.0, 0.0, {}))
        moved = {k: before.get(k, 0.0) + moves.get(k, 0.0) for k in (*before, *moves)}
        sums[what] = (what, compute + compute_s, memory + memory_s, moved)
    return list(sums.values())


def busy_s(plan: PlanRecord) -> float:
    """Return the seconds of a step in which stages work, those of all stages together.

    Args:
        plan: The plan.
    """
    is_whole = plan.schedule == ONE_PROGRAM or is_forward_only(plan.schedule)
    count = 1 if is_whole else plan.num_microbatches
    return sum(
        count * (stage.forward_s + stage.backward_s + stage.gather_s) + stage.once_s
        for stage in plan.stages
    )


def _seconds(row: Row) -> float:
    _, compute_s, memory_s, moves = row
    return max(compute_s, memory_s) + sum(moves.values())


def _cells(row: Row, kinds: Sequence[str]) -> tuple[str, ...]:
    what, compute_s, memory_s, moves = row
    times = (compute_s, memory_s, *(moves.get(kind, 0.0) for kind in kinds))
    return (what, *(seconds_text(t) if t else "" for t in times))


def _argument_rows(plan: PlanRecord) -> list[Row]:
    groups: dict[str, dict[str, float]] = {}
    for stage in plan.stages:
        for position, argument in enumerate(stage.arguments):
            moves = groups.setdefault(pattern(argument.name or f"input {position}"), {})
            for kind, seconds in argument.communication:
                moves[kind] = moves.get(kind, 0.0) + seconds
    return [(name, 0.0, 0.0, moves) for name, moves in groups.items() if moves]


def rivals(plan: PlanRecord) -> list[str]:
    """Rivals with the true price of forcing them."""
    names = plan.stages[0].mesh.names
    rows = [
        (
            rival.what,
            str(rival.count),
            way_text(rival.chosen.operands, rival.chosen.results, names),
            "none fits"
            if (other := rival.rival) is None
            else way_text(other.operands, other.results, names),
            _price_text(plan, rival),
        )
        for rival in plan.rivals
    ]
    header = ("argument or operator", "count", "chosen", "best rival", "a step")
    lines = table(header, rows, "lrwwr")
    if any(r.status != "optimal" for r in plan.rivals) or plan.status != "optimal":
        lines.append("~: one of the two plans is not proved optimal")
    return lines


def _price_text(plan: PlanRecord, rival: Rival) -> str:
    if rival.step_time_s is None:
        return ""
    proved = rival.status == plan.status == "optimal"
    return _signed(rival.step_time_s - plan.step_time_s) + ("" if proved else " ~")


def _signed(seconds: float) -> str:
    return f"{'-' if seconds < 0 else '+'}{seconds_text(abs(seconds))}"


def memory(plan: PlanRecord) -> list[str]:
    """Return what more memory would save."""
    price = plan.memory_price
    assert price is not None
    saved_s = plan.step_time_s - price.step_time_s
    more = f"{bytes_text(price.more_bytes)} more per device would save"
    proved = "" if price.status == plan.status == "optimal" else " ~"
    if saved_s <= 0:
        return [f"{more} nothing{proved}"]
    uses = f"that plan uses {bytes_text(price.peak_bytes)}"
    return [f"{more} {seconds_text(saved_s)} a step{proved}; {uses}"]
