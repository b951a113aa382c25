"""What a user asks of a plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from meshwise.cluster.spec import ClusterSpec
from meshwise.request.methods import Method
from meshwise.request.placement import Placement
from meshwise.rules.kernel import ForeignRule
from meshwise.trace.step import Statistics


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """What a user asks of a plan; see `parallelize`.

    Attributes:
        placement: Where an earlier plan has the state, which stays there if it can.
    """

    method: Method
    cluster: Callable[[], ClusterSpec]
    num_microbatches: int | Literal["auto"] = 1
    statistics: Statistics = "exact"
    pins: Mapping[str, object] = field(default_factory=dict[str, object])
    memory_bytes: int | None = None
    rules: Mapping[str, ForeignRule] = field(default_factory=dict[str, ForeignRule])
    dump_ilp: Path | None = None
    placement: Placement | None = None
