"""What a plan says against what XLA compiled: collectives, dense FLOP, memory (invariant I2).

Nothing runs; each program is compiled once for 8 virtual CPU devices.
`python -m benchmarks.fidelity [listed|held-out|SEED ...]` prints the table.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

import meshwise as mw
from benchmarks.fidelity_cases import LISTED, NUM_DEVICES, Case, drawn, held_out, parallel_step
from meshwise.plan.counts.collectives import Collective
from meshwise.runtime.hlo.collectives import HloCollective, hlo_collectives
from meshwise.runtime.hlo.flop import hlo_dense_flop
from meshwise.runtime.hlo.module import parse_module

# Collectives of one number may be merged or moved; only their sum is compared.
SCALAR_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One program.

    Attributes:
        case: What was compiled.
        predicted_bytes: Peak of one device as planned.
        measured_bytes: As XLA reports it.
        predicted_flop: Dense FLOP of one device as planned.
        measured_flop: In the compiled text.
        predicted: Bytes of collectives for each (kind, axes), scalars under ("scalars", ()).
        measured: The same in the compiled text.
        seconds: For plan and compilation.
    """

    case: str
    method: str
    predicted_bytes: int
    measured_bytes: int
    predicted_flop: float
    measured_flop: float
    predicted: dict[tuple[str, Any], int]
    measured: dict[tuple[str, Any], int]
    seconds: float

    @property
    def memory_ratio(self) -> float:
        """Predicted over measured peak memory."""
        return self.predicted_bytes / self.measured_bytes

    @property
    def flop_ratio(self) -> float:
        """Predicted over measured dense FLOP."""
        return self.predicted_flop / max(self.measured_flop, 1.0)

    @property
    def wrong_collectives(self) -> dict[tuple[str, Any], tuple[int, int]]:
        """Where bytes differ: predicted and measured."""
        keys = self.predicted.keys() | self.measured.keys()
        pairs = {key: (self.predicted.get(key, 0), self.measured.get(key, 0)) for key in keys}
        return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def planned_collective_bytes(
    collectives: Iterable[Collective], names: Sequence[str], sizes: Sequence[int]
) -> dict[tuple[str, Any], int]:
    """Bytes for each (kind, axes); axes of size 1 do not count."""
    totals: Counter[tuple[str, Any]] = Counter()
    for item in collectives:
        axes = sorted(names.index(name) for name in item.axes)
        key = (item.kind, tuple(a for a in axes if sizes[a] > 1))
        totals[_pooled(key, item.num_bytes)] += item.num_bytes * item.count
    return dict(totals)


def compiled_collective_bytes(collectives: Iterable[HloCollective]) -> dict[tuple[str, Any], int]:
    """The same of a compiled program."""
    totals: Counter[tuple[str, Any]] = Counter()
    for item in collectives:
        key = (item.kind, item.groups if item.axes is None else item.axes)
        totals[_pooled(key, item.num_bytes)] += item.num_bytes * item.count
    return dict(totals)


def _pooled(key: tuple[str, Any], num_bytes: int) -> tuple[str, Any]:
    return ("scalars", ()) if num_bytes <= SCALAR_BYTES else key


def compare(case: Case) -> Comparison:
    """Plan and compile one program of the list."""
    return compare_step(str(case), *parallel_step(case))


def compare_step(name: str, step: mw.api.ParallelStep, state: Any, batch: Any) -> Comparison:
    """Plan and compile one step.

    Args:
        name: What the program is called in tables.
        step: Not run.
        state: Abstract first argument.
        batch: Abstract second argument.
    """
    start = time.perf_counter()
    plan: mw.Plan = step.plan(state, batch)
    (text,) = step.compiled_text(state, batch).values()
    measured_bytes = step.measured_peak_bytes(state, batch)
    seconds = time.perf_counter() - start
    module = parse_module(text)
    mesh = plan.mesh
    return Comparison(
        case=name,
        method=plan.method.replace(", objective='time', time_limit_s=inf, seed=0", ""),
        predicted_bytes=plan.peak_bytes,
        measured_bytes=measured_bytes,
        predicted_flop=plan.device_flop,
        measured_flop=hlo_dense_flop(module),
        predicted=planned_collective_bytes(plan.collectives, mesh.names, mesh.sizes),
        measured=compiled_collective_bytes(hlo_collectives(module, mesh.sizes)),
        seconds=seconds,
    )


def table(found: Sequence[Comparison]) -> str:
    """The comparisons as Markdown."""
    lines = [
        "| program | method | predicted MB | measured MB | ratio | FLOP | collectives |",
        "|---|---|---|---|---|---|---|",
    ]
    for item in found:
        wrong = item.wrong_collectives
        total = sum(item.measured.values()) / 1e6
        lines.append(
            f"| {item.case} | {item.method} | {item.predicted_bytes / 1e6:.3f} "
            f"| {item.measured_bytes / 1e6:.3f} | {item.memory_ratio:.3f} "
            f"| {item.flop_ratio:.4f} | {wrong if wrong else f'{total:.2f} MB, equal'} |"
        )
    errors = [abs(item.memory_ratio - 1) for item in found]
    lines.append("")
    lines.append(
        f"{len(found)} programs; memory ratio {min(i.memory_ratio for i in found):.3f} to "
        f"{max(i.memory_ratio for i in found):.3f}, median error {statistics.median(errors):.2%}."
    )
    return "\n".join(lines)


def fidelity(quick: bool) -> dict[str, Any]:
    """Predicted against compiled collectives, FLOP and peak memory of 30 programs."""
    cases = LISTED[:4] if quick else (*LISTED, *held_out())
    found = [compare(case) for case in cases]
    errors = [abs(item.memory_ratio - 1) for item in found]
    return {
        "programs": [
            {
                "program": item.case,
                "method": item.method,
                "predicted_bytes": item.predicted_bytes,
                "measured_bytes": item.measured_bytes,
                "memory_ratio": item.memory_ratio,
                "flop_ratio": item.flop_ratio,
                "wrong_collectives": {str(k): v for k, v in item.wrong_collectives.items()},
                "seconds": item.seconds,
            }
            for item in found
        ],
        "median_memory_error": statistics.median(errors),
    }


def _main(words: Sequence[str]) -> None:
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", NUM_DEVICES)
    cases: list[Case] = []
    for word in words or ("listed", "held-out"):
        if word == "listed":
            cases += LISTED
        elif word == "held-out":
            cases += held_out()
        else:
            cases.append(drawn(int(word)))
    found: list[Comparison] = []
    for case in cases:
        found.append(compare(case))
        print(f"{found[-1].memory_ratio:.3f} {found[-1].seconds:.0f} s {case}", file=sys.stderr)
    print(table(found))


if __name__ == "__main__":
    _main(sys.argv[1:])
