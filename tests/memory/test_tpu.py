"""What XLA:TPU fuses, narrows, sums and places, on programs of known memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwise.graph.graph import Operator, Tensor
from meshwise.graph.loops import Loop, LoopRule
from meshwise.memory.gpu.target import GPU
from meshwise.memory.heap import Lifetime, heap_bytes
from meshwise.memory.local_program import (
    InstructionKind,
    Instructions,
    LocalProgram,
    LocalValue,
)
from meshwise.memory.narrowing import narrow_factors
from meshwise.memory.target import Target
from meshwise.memory.tpu.heap import first_fit_bytes, mean_heap_bytes
from meshwise.memory.tpu.target import TPU, TPU_V5P

INPUT, FUSIBLE = InstructionKind.INPUT, InstructionKind.FUSIBLE
REDUCE, OPAQUE = InstructionKind.REDUCE, InstructionKind.OPAQUE


def product(*inputs: int, num_bytes: int = 128, is_batched: bool = False) -> LocalValue:
    return LocalValue(
        OPAQUE, inputs, num_bytes, 0, 0, is_product=True, is_batched=is_batched
    )  # fmt: skip


def value(kind: InstructionKind, *inputs: int, num_bytes: int = 128) -> LocalValue:
    return LocalValue(kind, inputs, num_bytes, 0, 0)


def made(target: Target, *values: LocalValue, outputs: tuple[int, ...]) -> Instructions:
    program = LocalProgram()
    for row in values:
        program.add(row)
    program.outputs.extend(outputs)
    return target.instructions(program)


def buffers(program: Instructions) -> list[tuple[int, ...]]:
    return [step.defines for step in program.steps]


def test_products_compute_their_operands() -> None:
    rows = [value(INPUT), value(INPUT), value(FUSIBLE, 0, 1), product(2), product(2)]
    # Two readers of a sum of two arrays: 2 x 256 bytes again, 256 + 3 x 128 where it is kept.
    assert buffers(made(TPU, *rows, outputs=(3, 4))) == [(3,), (4,)]
    assert buffers(made(GPU, *rows, outputs=(3, 4))) == [(2,), (3,), (4,)]


def softmax(num_readers: int) -> list[LocalValue]:
    """Scores in 64 bytes, masked in 128; what is rounded to 64 is read by batched products."""
    return [
        value(INPUT),
        product(0, num_bytes=64, is_batched=True),
        value(FUSIBLE, 1),
        value(FUSIBLE, 2),
        value(REDUCE, 3, num_bytes=8),
        value(FUSIBLE, 3, 4)._replace(is_expensive=True),
        value(FUSIBLE, 5, num_bytes=64),
        *(product(6, num_bytes=8, is_batched=True) for _ in range(num_readers)),
    ]


def test_a_softmax_is_computed_with_its_scores() -> None:
    # 128 bytes of exponentials in the dtype of the sum ...
    assert buffers(made(TPU, *softmax(1), outputs=(7,))) == [(3,), (4,), (7,)]
    # ... from which both products compute what they read, where memory is slow.
    assert buffers(made(TPU, *softmax(2), outputs=(7, 8))) == [(3,), (4,), (7,), (8,)]
    assert buffers(made(TPU_V5P, *softmax(2), outputs=(7, 8))) == [(3,), (4,), (6,), (7,), (8,)]


def test_scores_may_be_transposed_before_their_softmax() -> None:
    rows = softmax(1)
    moved = value(FUSIBLE, 1, num_bytes=64)._replace(is_moving=True)
    rows = [*rows[:2], moved, *(row._replace(inputs=_shifted(row.inputs)) for row in rows[2:])]
    assert buffers(made(TPU, *rows, outputs=(8,))) == [(4,), (5,), (8,)]


def _shifted(inputs: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(u + (u > 0) for u in inputs)


def test_scores_of_grouped_queries_have_a_buffer() -> None:
    rows = softmax(2)
    rows[8] = rows[8]._replace(is_grouped=True)
    assert buffers(made(TPU, *rows, outputs=(7, 8)))[0] == (1,)


def test_scores_that_are_a_result_have_a_buffer() -> None:
    scores = buffers(made(TPU, *softmax(1), outputs=(1, 7)))
    assert (1,) in scores
    converted = buffers(made(TPU, *softmax(1), outputs=(2, 7)))
    assert (2,) in converted


def test_gathered_scores_have_a_buffer() -> None:
    rows = softmax(1)
    rows[2] = value(OPAQUE, 1)._replace(is_copy=True)
    assert buffers(made(TPU, *rows, outputs=(7,)))[:2] == [(1,), (2,)]


def test_moves_that_meet_again_are_followed_once() -> None:
    # Each roll is two slices and a concatenation; paths through them double with each.
    rows = [value(INPUT), value(FUSIBLE, 0), value(FUSIBLE, 1, num_bytes=64)]
    for _ in range(30):
        last = len(rows) - 1
        slices = value(FUSIBLE, last, num_bytes=64)._replace(is_moving=True)
        both = value(FUSIBLE, last + 1, last + 2, num_bytes=64)._replace(is_moving=True)
        rows += [slices, slices, both]
    rows.append(product(len(rows) - 1))
    assert len(made(TPU, *rows, outputs=(len(rows) - 1,)).steps) == 1


def test_the_narrowest_value_of_a_chain_has_a_buffer() -> None:
    rows = [
        *(value(INPUT), value(INPUT), value(INPUT)),
        value(FUSIBLE, 0, 1, 2, num_bytes=64),
        value(FUSIBLE, 3),
        *(product(4, num_bytes=8) for _ in range(4)),
    ]
    # A sum of three arrays that four products read, after it was converted to more bytes.
    found = buffers(made(TPU, *rows, outputs=(5, 6, 7, 8)))
    assert (3,) in found
    assert (4,) not in found


@pytest.mark.parametrize(("is_batched", "is_kept"), [(True, True), (False, False)])
def test_a_rounded_softmax_is_kept_for_batched_products(is_batched: bool, is_kept: bool) -> None:
    rows = [
        value(INPUT),
        value(FUSIBLE, 0)._replace(is_expensive=True),
        value(FUSIBLE, 1, num_bytes=64),
        product(2, is_batched=is_batched),
        product(2, is_batched=is_batched),
    ]
    assert ((2,) in buffers(made(TPU_V5P, *rows, outputs=(3, 4)))) == is_kept
    assert (2,) not in buffers(made(TPU_V5P, *rows[:4], outputs=(3,)))
    assert (2,) not in buffers(made(TPU, *rows, outputs=(3, 4)))


def test_what_only_products_read_lies_in_bfloat16() -> None:
    program = LocalProgram()
    tile = value(FUSIBLE, 0, num_bytes=32)._replace(is_moving=True)
    gather = value(OPAQUE, 1)._replace(is_copy=True)
    rows = [value(INPUT), tile, gather, product(2), value(REDUCE, 3), product(2, 3)]
    for row in rows:
        program.add(row)
    program.outputs.append(4)
    narrow_factors(program, [Tensor(shape=(32,), dtype="float32", itemsize=4)])
    # The tile and what is gathered; the first product is added up as well, the argument stays.
    assert [v.num_bytes for v in program.values] == [128, 16, 64, 128, 128, 128]


def test_what_is_summed_over_devices_stays_in_float32() -> None:
    program = LocalProgram()
    summed = value(OPAQUE, 1)._replace(is_copy=True, is_summed=True)
    for row in (value(INPUT), value(FUSIBLE, 0), summed, product(2)):
        program.add(row)
    program.outputs.append(3)
    narrow_factors(program, [Tensor(shape=(32,), dtype="float32", itemsize=4)])
    assert [v.num_bytes for v in program.values] == [128, 128, 64, 128]


def test_values_are_placed_in_the_order_in_which_they_are_made() -> None:
    # The third one does not fit below the second one, although that place is free.
    lifetimes = [Lifetime(64, 0, 1), Lifetime(128, 1, 5), Lifetime(128, 3, 5)]
    assert first_fit_bytes(lifetimes, 1 / 256) == 320
    assert heap_bytes(lifetimes) == 256
    assert mean_heap_bytes(lifetimes) == 320
    assert mean_heap_bytes([]) == 0


def test_the_heap_is_a_mean_over_what_is_placed_one_by_one() -> None:
    # 32 bytes in the gap of 1000 leave no room for 1000, unless they are added up beside it.
    lifetimes = [
        Lifetime(1000, 0, 1),
        Lifetime(1024, 1, 9),
        Lifetime(32, 2, 9),
        Lifetime(1000, 3, 9),
    ]
    placed, beside = 1000 + 1024 + 1000, 1000 + 1024 + 32
    assert first_fit_bytes(lifetimes, 1 / 256) == placed
    assert first_fit_bytes(lifetimes, 1 / 16) == beside
    assert mean_heap_bytes(lifetimes) == (2 * placed + beside) // 3


def test_gaps_are_reported_twice() -> None:
    # A heap of 320 bytes of which 256 are live at once.
    assert TPU.reported_bytes(320, 256) == 384
    assert GPU.reported_bytes(320, 256) == 320


def test_images_fill_up_lanes() -> None:
    assert TPU.padded_elements((4, 8, 8, 160), (0, 3)) == 4 * 64 * 256
    # Of few features the batch lies along the lanes.
    assert TPU.padded_elements((32, 8, 8, 3), (0, 3)) == 64 * 128 * 4
    assert TPU.padded_elements((4, 16, 64), ()) == 4 * 16 * 64
    assert GPU.padded_elements((4, 8, 8, 160), (0, 3)) == 4 * 64 * 160


def test_an_image_of_few_features_is_spread_along_the_lanes() -> None:
    # bf16[224,32,32,3,7] with tiles of 4 x 128: 49 MiB.
    assert TPU.spread_elements((4, 3, 224, 224), 7) == 224 * 32 * 7 * 4 * 128
    assert TPU.spread_elements((3, 4, 224, 224), 7) == 224 * 32 * 7 * 4 * 128
    assert GPU.spread_elements((4, 3, 8, 8), 7) == 4 * 3 * 8 * 8


def test_the_dim_that_fills_up_lanes_lies_along_them() -> None:
    assert TPU.lies_transposed((4, 512, 15261))
    assert not TPU.lies_transposed((4, 512, 16000))
    assert not TPU.lies_transposed((4, 500, 15261))
    assert not TPU.lies_transposed((7,))
    assert not GPU.lies_transposed((4, 512, 15261))


def operator(kind: str, *loops: str) -> Operator:
    rule = LoopRule(tuple(Loop(1, loop) for loop in loops), ((), (), ()), ((),))
    return Operator(kind=kind, inputs=(0, 1, 2), outputs=(3,), rule=rule, flop=0.0)


def test_a_scatter_whose_updates_never_meet_is_element_wise() -> None:
    assert TPU.treatment(operator("scatter-add", "parallel"), ()).kind == FUSIBLE
    assert TPU.treatment(operator("scatter-add", "sum", "parallel"), ()).is_in_place
    assert TPU.treatment(operator("gather", "parallel"), ()).kind == OPAQUE


@pytest.mark.parametrize("kind", ["scatter", "scatter-mul"])
def test_other_scatters_write_into_a_buffer(kind: str) -> None:
    # Their rules have no loop over updates that may meet.
    assert TPU.treatment(operator(kind, "parallel"), ()).is_in_place
    assert TPU.treatment(operator("scatter-add"), ()).is_in_place


def test_convolutions_read_images_in_any_layout() -> None:
    orders = ((0, 1, 2, 3), (0, 1, 2, 3), (0, 1, 2, 3))
    op = replace(operator("conv_general_dilated"), heavy=True, dim_orders=orders)
    assert TPU.treatment(op, ((4, 8, 8, 16), (3, 3, 16, 16))).rewritten == ()
    assert TPU.treatment(operator("select_and_scatter_add"), ()).rewritten == ()
