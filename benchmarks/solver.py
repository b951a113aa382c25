"""The contest's instances within their time limits: `python -m benchmarks.solver DIR`.

DIR holds `*.json.gz` and `reference_costs.csv` with columns instance, time_limit_s, winner_team01,
xla_production_solver and best_known.  Each run is a process of its own, so that its seconds count
from its start: imports, reading, and compilation if the kernels are new.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.record import write_record
from meshwise.assignment.files.reader import read_instance
from meshwise.assignment.instance import evaluate

COLUMNS = ("winner_team01", "xla_production_solver", "best_known")


def main() -> None:
    """Solve each instance with each seed and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.solver", description=__doc__)
    parser.add_argument("folder", type=Path, help="instances and reference_costs.csv")
    parser.add_argument("--seeds", type=int, default=3, help="seeds 0, 1, ... (default 3)")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME", help="of the instances")
    parser.add_argument("--out", type=Path, default=Path("bench-out"), help="folder for JSON")
    args = parser.parse_args()
    runs: list[dict[str, Any]] = []
    for row in _references(args.folder):
        if args.only and row["instance"] not in args.only:
            continue
        (path,) = args.folder.glob(f"*-{row['instance']}.json*")
        runs += [_shown(run(path, row, seed)) for seed in range(args.seeds)]
    if runs:
        Console(width=160).print(_table(runs))
    print(write_record(args.out, "solver", {"runs": runs}))


def _shown(record: dict[str, Any]) -> dict[str, Any]:
    print(json.dumps(record), file=sys.stderr, flush=True)
    return record


def _references(folder: Path) -> list[dict[str, str]]:
    with (folder / "reference_costs.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def run(path: Path, row: dict[str, str], seed: int) -> dict[str, Any]:
    """One run, its answer checked in integers."""
    limit = float(row["time_limit_s"])
    start = time.monotonic()
    data = solved(path, limit, seed)
    seconds = time.monotonic() - start
    return {
        "instance": row["instance"],
        "seed": seed,
        "seconds": round(seconds, 1),
        "limit_s": limit,
        "bound": data["bound"],
        "status": data["status"],
        **_checked(path, row, data),
        **{name: int(row[name]) if row[name] else None for name in COLUMNS},
    }


def solved(path: Path, limit_s: float, seed: int) -> dict[str, Any]:
    """Return what `meshwise solve --json` prints for a file, in a process of its own."""
    command = [sys.executable, "-c", "from meshwise.cli import main; main()", "solve", str(path)]
    command += ["--time-limit", f"{limit_s}", "--seed", f"{seed}", "--json"]
    out = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    return json.loads(out.stdout)


def _checked(path: Path, row: dict[str, str], data: dict[str, Any]) -> dict[str, Any]:
    """The cost of a choice by code that the solver does not use, and over the best known one."""
    cost = evaluate(read_instance(path), data["choice"]).cost if data["choice"] else None
    return {"cost": cost, "ratio": cost / int(row["best_known"]) if cost is not None else None}


def _table(runs: list[dict[str, Any]]) -> Table:
    table = Table(title="Cost over best known; seconds from process start")
    for name in ("instance", "seed", "cost", "ratio", "bound", "gap", "seconds", "limit", "status"):
        table.add_column(name, justify="right")
    for name in ("winner", "XLA"):
        table.add_column(f"{name} / best", justify="right")
    for r in runs:
        best, cost = r["best_known"], r["cost"]
        rivals = [r["winner_team01"], r["xla_production_solver"]]
        table.add_row(
            r["instance"],
            str(r["seed"]),
            str(cost),
            f"{r['ratio']:.5f}" if r["ratio"] else "-",
            str(r["bound"]),
            f"{(cost - r['bound']) / cost:.4%}" if cost else "-",
            f"{r['seconds']:.1f}",
            f"{r['limit_s']:.0f}",
            r["status"],
            *(f"{x / best:.4f}" if x else "-" for x in rivals),
        )
    return table


if __name__ == "__main__":
    main()
