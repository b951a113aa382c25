"""Predicted memory of stages is what XLA says of their compiled programs (I2)."""

from __future__ import annotations

import pytest

from doubles.stage_memory import stage_memories
from meshwise.inter.piece import Remat

Shapes = tuple[tuple[int, int], ...]
TWO: Shapes = ((2, 2), (1, 2))
THREE: Shapes = ((1, 1), (2, 1), (1, 2))

# Others: docs/measurements/pipelines.md.
CASES: list[tuple[str, Shapes]] = [
    ("gpt", THREE),
    ("bert", TWO),
    ("bert", THREE),
    ("llama", TWO),
    ("moe", TWO),
    ("wide-resnet", TWO),
]


@pytest.mark.parametrize(
    ("model", "shapes"),
    [("gpt", TWO), *(pytest.param(*c, marks=pytest.mark.slow) for c in CASES)],
)
def test_predicted_memory_of_a_stage_is_that_of_xla(model: str, shapes: Shapes) -> None:
    for stage in stage_memories(model, shapes, "none"):
        assert 0.97 <= stage.ratio <= 1.12, stage


@pytest.mark.slow
@pytest.mark.parametrize("remat", ["none", "full"])
@pytest.mark.parametrize("model", ["gpt", "bert", "moe"])
def test_predicted_memory_with_gradients_of_weights_apart(model: str, remat: Remat) -> None:
    for stage in stage_memories(model, TWO, remat, schedule="zero-bubble-h1"):
        assert 0.97 <= stage.ratio <= 1.12, stage
        assert stage.predicted.weight_bytes > 0
        assert stage.measured.weight_bytes == pytest.approx(stage.predicted.weight_bytes, rel=0.02)
