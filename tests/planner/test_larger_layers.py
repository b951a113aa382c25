"""Where nothing fits, layers are made larger: then less is kept at their borders."""

from __future__ import annotations

from typing import Any

import pytest

import meshwise as mw
from meshwise.errors import InfeasibleError
from meshwise.inter.search.unsearched_memory import NamedMemoryError
from meshwise.models.named import model_config
from meshwise.models.steps import model_step
from meshwise.plan.plan import Plan
from meshwise.planner import pipeline
from meshwise.planner.pipeline import plan_pipeline
from meshwise.request.pipeline_request import PipelineRequest
from meshwise.schedules.registry import named
from meshwise.trace.layers.layering import Layering
from meshwise.trace.step import StepSignature

pytestmark = pytest.mark.usefixtures("layers_known")

SIGNATURE = StepSignature(batch_argnums=(1,), batch_dims=0, donate_argnums="auto")
CLUSTER = mw.Cluster.virtual("1x p3.8xlarge")
HAS = CLUSTER.slowest().device.memory_bytes


def planned(num_blocks: int, **asked: Any) -> Plan:
    step, state, batch = model_step(model_config("gpt-tiny", num_layers=num_blocks), 16).abstract
    request = PipelineRequest(
        cluster=CLUSTER,
        num_microbatches=(1,),
        schedules=named("1f1b"),
        **{"remats": ("none", "full"), "offload": False} | asked,
    )
    return plan_pipeline(step, (state, batch), {}, SIGNATURE, request).plan


def without_room(monkeypatch: pytest.MonkeyPatch, num_bytes: int) -> list[int]:
    """Let nothing fit at first; returns how many layers each search had."""
    real, counts = pipeline.planned_layers, list[int]()

    def searched(layers: Layering, *args: Any, **options: Any) -> Any:
        counts.append(len(layers.classes))
        if len(counts) == 1:
            raise NamedMemoryError("nothing fits", num_bytes)
        return real(layers, *args, **options)

    monkeypatch.setattr(pipeline, "planned_layers", searched)
    return counts


def test_whole_blocks_are_layers_where_halves_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = without_room(monkeypatch, 3 * HAS // 2)
    plan = planned(4)
    # Halves of four blocks and the loss; whole blocks, with embedding and loss or without.
    assert counts[0] == 9
    assert counts[1:] == [len(plan.cuts)]
    assert 3 <= counts[1] <= 6


@pytest.mark.parametrize(
    ("num_bytes", "asked"),
    [
        (3 * HAS, {}),
        (3 * HAS // 2, {"num_layers": 9}),
        (3 * HAS // 2, {"remats": ("none",)}),
        (3 * HAS // 2, {"num_stages": 7}),
    ],
)
def test_other_layers_are_not_tried_where_they_cannot_help(
    monkeypatch: pytest.MonkeyPatch, num_bytes: int, asked: dict[str, Any]
) -> None:
    counts = without_room(monkeypatch, num_bytes)
    monkeypatch.setattr(pipeline, "with_attention", lambda _: None)
    with pytest.raises(InfeasibleError, match=f"memory_bytes={num_bytes}"):
        planned(4, **asked)
    assert counts == [9]
