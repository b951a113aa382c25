"""Predicted memory of stages is what XLA says of their compiled programs (I2)."""

from __future__ import annotations

import itertools

import pytest

from doubles.stage_memory import StageMemory, stage_memories
from meshwise.plan.stage import Remat
from oracle.tolerances import (
    BERT_MEMORY_ABOVE,
    BERT_MEMORY_BELOW,
    MEMORY_ABOVE,
    MEMORY_BELOW,
    RECOMPUTED_MEMORY_ABOVE,
)

pytestmark = pytest.mark.usefixtures("quick_compile")

Shapes = tuple[tuple[int, int], ...]
TWO: Shapes = ((2, 2), (1, 2))
THREE: Shapes = ((1, 1), (2, 1), (1, 2))

MODELS = ("gpt", "gpt remat", "bert", "llama", "moe", "wide-resnet", "u-transformer")
REMATS: tuple[Remat, ...] = ("none", "selective", "full")
# Numbers: docs/measurements/pipelines.md.
CASES = list(itertools.product(MODELS, (TWO, THREE), REMATS))
QUICK = ("gpt", TWO, "none")
NARROW: list[tuple[str, Remat, str, bool]] = [
    ("gpt", "none", "bfloat16", False),
    ("gpt", "full", "bfloat16", False),
    ("gpt", "none", "bfloat16", True),
    ("gpt", "none", "float16", False),
    ("llama", "none", "bfloat16", False),
    ("llama", "full", "bfloat16", False),
    ("bert", "none", "bfloat16", False),
    ("moe", "none", "bfloat16", False),
]


def check(model: str, remat: Remat, stage: StageMemory) -> None:
    is_bert = model == "bert"
    below, above = (
        (BERT_MEMORY_BELOW, BERT_MEMORY_ABOVE) if is_bert else (MEMORY_BELOW, MEMORY_ABOVE)
    )
    if remat != "none":
        above = RECOMPUTED_MEMORY_ABOVE
    assert 1 - below <= stage.ratio <= 1 + above, stage


@pytest.mark.parametrize(
    ("model", "shapes", "remat"),
    [pytest.param(*case, marks=[] if case == QUICK else [pytest.mark.slow]) for case in CASES],
)
def test_predicted_memory_of_a_stage_is_that_of_xla(
    model: str, shapes: Shapes, remat: Remat
) -> None:
    for stage in stage_memories(model, shapes, remat):
        check(model, remat, stage)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "remat", "dtype", "has_master_copy"), NARROW)
def test_predicted_memory_in_mixed_precision(
    model: str, remat: Remat, dtype: str, has_master_copy: bool
) -> None:
    for stage in stage_memories(model, TWO, remat, dtype, has_master_copy=has_master_copy):
        check(model, remat, stage)


@pytest.mark.slow
@pytest.mark.parametrize("remat", ["none", "full"])
@pytest.mark.parametrize("model", ["gpt", "bert", "moe"])
def test_predicted_memory_with_gradients_of_weights_apart(model: str, remat: Remat) -> None:
    for stage in stage_memories(model, TWO, remat, schedule="zero-bubble-h1"):
        check(model, remat, stage)
        assert stage.predicted.weight_bytes > 0
        assert stage.measured.weight_bytes == pytest.approx(stage.predicted.weight_bytes, rel=0.02)
