"""What a run ended with: numbers only, written as JSON next to the checkpoints."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from meshwise.plan.collectives import Collective
from meshwise.runtime.hlo import hlo_collectives


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSummary:
    """The closing summary.

    Losses are in nats per byte; `first_loss` and `last_loss` are means over up to ten steps.
    Times are seconds, sizes bytes of one device; collectives are bytes a step by kind.
    """

    model: str
    num_parameters: int
    text: str
    train_bytes: int
    heldout_bytes: int
    num_devices: int
    method: str
    first_step: int
    steps_done: int
    is_complete: bool
    first_loss: float
    last_loss: float
    heldout_loss: float
    tokens_per_s: float
    predicted_step_s: float
    median_step_s: float
    predicted_peak_bytes: int
    actual_peak_bytes: int
    predicted_collective_bytes: dict[str, int]
    actual_collective_bytes: dict[str, int]
    checkpoint: str
    plan_s: float
    wall_s: float

    def to_json(self) -> str:
        """As indented JSON with sorted keys."""
        return json.dumps(asdict(self), indent=2, sort_keys=True)


def planned_bytes(collectives: Iterable[Collective]) -> dict[str, int]:
    """Planned bytes a step by kind of collective."""
    total: Counter[str] = Counter()
    for record in collectives:
        total[record.kind] += record.num_bytes * record.count
    return dict(sorted(total.items()))


def compiled_bytes(programs: Mapping[str, str], num_devices: int) -> dict[str, int]:
    """Bytes a step by kind of collective in the compiled programs.

    Args:
        programs: Optimised HLO by program name.
        num_devices: Devices that run them.
    """
    total: Counter[str] = Counter()
    for text in programs.values():
        for record in hlo_collectives(text, (num_devices,)):
            total[record.kind] += record.num_bytes * record.count
    return dict(sorted(total.items()))
