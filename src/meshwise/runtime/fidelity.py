"""What was predicted of a compiled step beside what XLA says of it; invariant I2."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from meshwise.plan.counts.collectives import Collective
from meshwise.runtime.hlo_collectives import HloCollective, hlo_collectives


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFidelity:
    """One stage, or the whole step on one mesh.

    Attributes:
        predicted_peak_bytes: Memory of one device, as the plan says, with other stages of its mesh.
        compiled_peak_bytes: As XLA says of the compiled programs.
        planned_bytes: Bytes a step by kind of collective (B of docs/facts.md section 1), planned.
        compiled_bytes: As the compiled programs have it.
    """

    predicted_peak_bytes: int
    compiled_peak_bytes: int
    planned_bytes: Mapping[str, int]
    compiled_bytes: Mapping[str, int]


def bytes_of(
    collectives: Iterable[Collective] | Iterable[HloCollective], times: int = 1
) -> Counter[str]:
    """Bytes by kind of collective.

    Args:
        collectives: Of one run of a program.
        times: How often it runs.
    """
    total: Counter[str] = Counter()
    for record in collectives:
        total[record.kind] += record.num_bytes * record.count * times
    return total


def compiled_bytes_of(text: str, mesh_sizes: Sequence[int], times: int = 1) -> Counter[str]:
    """Bytes by kind of collective in optimised HLO.

    Args:
        text: Of the program.
        mesh_sizes: Of the mesh that it was compiled for.
        times: How often it runs.
    """
    return bytes_of(hlo_collectives(text, mesh_sizes), times)
