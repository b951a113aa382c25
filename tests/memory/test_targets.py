"""Targets by name, and what XLA:CPU makes of operators."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwise.cluster.spec import ClusterSpec
from meshwise.errors import ClusterError
from meshwise.graph.graph import Operator, Tensor
from meshwise.graph.loops import LoopRule
from meshwise.memory.cpu.target import CPU
from meshwise.memory.local_program import InstructionKind
from meshwise.memory.targets import MEMORY_MODELS, memory_model, memory_model_of

DEVICE = ClusterSpec.virtual("1x p3.16xlarge").mesh((8,)).device


def operator(kind: str, num_operands: int = 1) -> Operator:
    operands = tuple(range(num_operands))
    rule = LoopRule((), ((),) * num_operands, ((),))
    return Operator(kind=kind, inputs=operands, outputs=(num_operands,), rule=rule, flop=0.0)


def test_targets_have_names() -> None:
    assert {name: target.name for name, target in MEMORY_MODELS.items()} == {
        "cpu": "cpu",
        "gpu": "gpu",
        "tpu": "tpu",
        "tpu-v5p": "tpu-v5p",
    }
    assert memory_model_of(DEVICE) is memory_model("gpu")
    assert memory_model_of(replace(DEVICE, name="TPU v5e")) is memory_model("tpu")
    assert memory_model_of(replace(DEVICE, name="TPU v5p")) is memory_model("tpu-v5p")
    assert memory_model_of(replace(DEVICE, name="abacus")) is memory_model("cpu")
    with pytest.raises(
        ClusterError, match="no memory model for 'abacus'; there are cpu, gpu, tpu, tpu-v5p"
    ):
        memory_model("abacus")


@pytest.mark.parametrize(
    ("kind", "treated"),
    [
        ("reshape", InstructionKind.VIEW),
        ("add", InstructionKind.FUSIBLE),
        ("sort", InstructionKind.OPAQUE),
        ("gather", InstructionKind.FUSIBLE),
    ],
)
def test_kinds(kind: str, treated: InstructionKind) -> None:
    assert CPU.treatment(operator(kind), ()).kind == treated


def test_a_scatter_is_in_place_and_wants_its_updates_in_order() -> None:
    treated = CPU.treatment(operator("scatter-add", 3), ())
    assert treated.is_in_place
    assert treated.rewritten == ((1, InstructionKind.FUSIBLE), (2, InstructionKind.FUSIBLE))


@pytest.mark.parametrize(
    ("orders", "rewritten", "is_copied"),
    [
        (((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2)), (), False),
        (((0, 1, 2, 3), (0, 1, 2, 3), (0, 1, 2, 3)), (0, 1), True),
    ],
    ids=["NHWC", "NCHW"],
)
def test_a_convolution_copies_what_lies_in_another_order(
    orders: tuple[tuple[int, ...], ...], rewritten: tuple[int, ...], is_copied: bool
) -> None:
    op = replace(operator("conv_general_dilated", 2), heavy=True, dim_orders=orders)
    treated = CPU.treatment(op, ())
    assert tuple(k for k, _ in treated.rewritten) == rewritten
    assert treated.is_copied == is_copied


def test_the_gradient_of_a_largest_of_windows_needs_indices() -> None:
    rule = LoopRule((), ((), ((), (), ())), ((),))
    op = replace(operator("select_and_scatter_add", 2), rule=rule)
    assert CPU.treatment(op, ()).num_indices == 3


def test_narrow_products_are_wide_where_the_device_has_none() -> None:
    half = Tensor(shape=(8,), dtype="float16", itemsize=2)
    single = Tensor(shape=(8,), dtype="float32", itemsize=4)
    slow = replace(DEVICE, flop_per_s=(("float32", 2.0), ("float16", 1.0)))
    assert CPU.product_itemsize(half, DEVICE) == 2
    assert CPU.product_itemsize(half, slow) == 4
    assert CPU.product_itemsize(single, slow) == 4
