"""What a target's compiler says of a program of one mesh, as a row of numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from meshwise.cluster.collectives import collective_terms, collective_time_s
from meshwise.cluster.mesh import LogicalMesh, MeshAxis
from meshwise.runtime.hlo.collectives import HloCollective, hlo_collectives
from meshwise.runtime.hlo.flop import hlo_dense_flop
from meshwise.runtime.hlo.module import Computation, HloInstruction, Module, parse_module
from meshwise.runtime.hlo.walk import executed
from meshwise.targets.child import CompileAnswer


def report(answer: CompileAnswer, mesh: LogicalMesh) -> dict[str, Any]:
    """Return memory, collectives and work of one device, as the compiler says.

    Args:
        answer: What it said.
        mesh: The mesh of the program; devices are numbered row-major.

    Returns:
        `argument_bytes`, `output_bytes`, `alias_bytes`, `temporary_bytes` and `peak_bytes`;
        `collectives`, for each kind as `_traffic`; `dense_flop`; for XLA:TPU `estimated_cycles` and
        `num_estimated` in its place: it writes products as convolutions over padded windows, of
        which the reader of FLOP would count the padding.

    Raises:
        ProgramError: the text cannot be read, or a loop around what counts runs an unknown number
            of times.
    """
    module = parse_module(answer.text)
    memory = answer.memory
    estimated = executed(module, _estimated_cycles)
    return {
        "argument_bytes": memory.argument_bytes,
        "output_bytes": memory.output_bytes,
        "alias_bytes": memory.alias_bytes,
        "temporary_bytes": memory.temporary_bytes,
        "peak_bytes": memory.peak_bytes,
        "collectives": _by_kind(module, mesh),
        "dense_flop": None if estimated else hlo_dense_flop(module),
        "estimated_cycles": sum(item.value * item.count for item in estimated),
        "num_estimated": len(estimated),
    }


def _by_kind(module: Module, mesh: LogicalMesh) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for item in hlo_collectives(module, mesh.sizes):
        sums = found.setdefault(item.kind, {})
        for name, value in _traffic(item, mesh).items():
            sums[name] = sums.get(name, 0) + value
    return found


def _traffic(item: HloCollective, mesh: LogicalMesh) -> dict[str, float]:
    """Return the numbers of a collective in one step.

    `number` of instructions, `runs`, `num_bytes` (B of docs/facts.md section 1), `sent_bytes` (what
    a device sends in the ring of that section), `simulated_s` (its seconds by Meshwise's formula).
    """
    slowest = min(mesh.axes, key=lambda axis: axis.link_bytes_per_s)
    if item.axes is None:
        terms = collective_terms(item.kind, (replace(slowest, size=item.group_size),))
        seconds = min(term.latency_s + term.seconds_per_byte * item.num_bytes for term in terms)
    else:
        seconds = collective_time_s(item.kind, item.axes, item.num_bytes, mesh)
    unit = MeshAxis(name="ring", size=item.group_size, latency_s=0.0, link_bytes_per_s=1.0)
    (ring,) = collective_terms(item.kind, (unit,))
    return {
        "number": 1,
        "runs": item.count,
        "num_bytes": item.num_bytes * item.count,
        "sent_bytes": round(ring.seconds_per_byte * item.num_bytes * item.count),
        "simulated_s": seconds * item.count,
    }


def _estimated_cycles(computation: Computation, instruction: HloInstruction) -> int | None:
    """Return the cycles that XLA:TPU writes beside an instruction; None where it writes none."""
    del computation
    window = instruction.backend_config.get("window_config")
    cycles = window.get("estimated_cycles") if isinstance(window, dict) else None
    return None if cycles is None else int(cycles)
