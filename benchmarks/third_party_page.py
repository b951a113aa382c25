"""The tables of `third_party`: one for each step and place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshwise.units import MIB

# Floating-point operations of the matrix units of a v5e in one cycle: four units of 128 x 128
# multiply and add; at 197 TFLOP/s (Google Cloud, "TPU v5e") that is a clock of 1.503 GHz.
_V5E_CLOCK_HZ = 197e12 / (4 * 128 * 128 * 2)


def page(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return all rows as tables in Markdown.

    Args:
        rows: What `third_party` wrote.
    """
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["place"], row["case"]), []).append(row)
    lines = [
        "| step | place | Meshwise | peak / least by hand | sent / least by hand |",
        "|---|---|---|---|---|",
        *(line for some in groups.values() for line in _ratios(some)),
        "",
    ]
    for (place, case), some in groups.items():
        lines += [f"### {case}, {place}", "", *_table(some), ""]
    return "\n".join(lines)


def _ratios(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each of our ways: beside the best by hand, in memory and in bytes sent."""
    compiled = [row for row in rows if "error" not in row]
    by_hand = [row for row in compiled if row["side"] == "hand"]
    if not by_hand:
        return []
    least_bytes = min(by_hand, key=lambda row: row["peak_bytes"])
    least_sent = min(by_hand, key=_sent_bytes)
    return [
        f"| {row['case']} | {row['place']} | {row['way']} | "
        f"{row['peak_bytes'] / least_bytes['peak_bytes']:.3f} ({least_bytes['way']}) | "
        f"{_sent_bytes(row) / _sent_bytes(least_sent):.3f} ({least_sent['way']}) |"
        for row in compiled
        if row["side"] != "hand"
    ]


def _sent_bytes(row: Mapping[str, Any]) -> float:
    return sum(sums["sent_bytes"] for sums in row["collectives"].values())


def _table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    has_cycles = any(row.get("estimated_cycles") for row in rows)
    head = [
        *("side", "way", "mesh", "peak", "temporary", "all-reduce", "reduce-scatter"),
        *("all-gather", "all-to-all", "permute", "number", "sent", "communication"),
        "operators" if has_cycles else "TFLOP",
    ]
    return [
        f"| {' | '.join(head)} |",
        "|" + "---|" * len(head),
        *(f"| {' | '.join(_cells(row, has_cycles))} |" for row in rows),
    ]


def _cells(row: Mapping[str, Any], has_cycles: bool) -> list[str]:
    start = [row["side"], row["way"]]
    if "error" in row:
        return [*start, row["error"].partition(":")[0]]
    kinds: Mapping[str, Mapping[str, float]] = row["collectives"]
    shown = ("all-reduce", "reduce-scatter", "all-gather", "all-to-all", "permute")
    return [
        *start,
        "x".join(map(str, row["mesh"])),
        _mib(row["peak_bytes"]),
        _mib(row["temporary_bytes"]),
        *(_mib(kinds[kind]["num_bytes"]) if kind in kinds else "" for kind in shown),
        str(round(sum(sums["runs"] for sums in kinds.values()))),
        _mib(_sent_bytes(row)),
        _ms(sum(sums["simulated_s"] for sums in kinds.values())),
        _ms(row["estimated_cycles"] / _V5E_CLOCK_HZ)
        if has_cycles
        else f"{row['dense_flop'] / 1e12:.3f}",
    ]


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.2f} ms"


def _mib(num_bytes: float) -> str:
    return f"{num_bytes / MIB:.0f}"
