"""The memory model on programs whose memory is known in closed form."""

from __future__ import annotations

from meshwise.intra.fusion import instructions
from meshwise.intra.order import Sizes, scheduled_peak
from meshwise.intra.values import FUSIBLE, INPUT, OPAQUE, REDUCE, VIEW, Values


def made(*rows: tuple[int, tuple[int, ...], int], outputs: tuple[int, ...]) -> Values:
    """Values from (kind, inputs, bytes)."""
    values = Values()
    for kind, inputs, num_bytes in rows:
        values.add(kind, inputs, num_bytes, 0, 0)
    values.outputs += outputs
    return values


def peak_of(values: Values) -> int:
    return scheduled_peak(instructions(values), Sizes(buffer=values.num_bytes, inner={})).num_bytes


def test_element_wise_chain_before_a_product_is_one_buffer() -> None:
    values = made(
        (INPUT, (), 100),
        (FUSIBLE, (0,), 100),
        (FUSIBLE, (1,), 100),
        (OPAQUE, (2,), 40),
        outputs=(3,),
    )
    assert instructions(values).value == [2, 3]
    assert peak_of(values) == 140


def test_cheap_value_is_made_again_for_each_reader_and_an_expensive_one_is_kept() -> None:
    rows = (
        (INPUT, (), 100),
        (FUSIBLE, (0,), 100),
        (FUSIBLE, (1,), 100),
        (FUSIBLE, (1,), 100),
        (OPAQUE, (2,), 8),
        (OPAQUE, (3,), 8),
    )
    cheap = made(*rows, outputs=(4, 5))
    assert 1 not in instructions(cheap).value
    costly = made(*rows, outputs=(4, 5))
    costly.is_expensive[1] = True
    assert 1 in instructions(costly).value


def test_expensive_operand_of_a_stored_step_that_is_repeated_is_kept_as_well() -> None:
    # e = exp(x); m = where(mask, e, 0); m / sum(m): the sum reads m, the quotient makes it again.
    rows = (
        (INPUT, (), 100),
        (FUSIBLE, (0,), 100),
        (FUSIBLE, (1,), 100),
        (REDUCE, (2,), 4),
        (FUSIBLE, (2, 3), 100),
        (OPAQUE, (4,), 8),
    )
    assert instructions(made(*rows, outputs=(5,))).value == [2, 3, 4, 5]
    costly = made(*rows, outputs=(5,))
    costly.is_expensive[1] = True
    program = instructions(costly)
    assert program.value == [1, 2, 3, 4, 5]
    assert program.reads[program.value.index(4)] == (3, 1)  # What is fused reads last.


def test_rows_looked_up_in_a_small_table_are_an_operand_of_full_size() -> None:
    # s = table[x] + table[y], normalised: no reader repeats a sum of two, so no lookup is shared.
    def normalised(*second: int) -> Values:
        values = made(
            (INPUT, (), 10),
            (INPUT, (), 10),
            (FUSIBLE, (0, 1), 100),
            (FUSIBLE, second, 100),
            (FUSIBLE, (2, 3), 100),
            (REDUCE, (4,), 10),
            (FUSIBLE, (4, 5), 100),
            (OPAQUE, (6,), 8),
            outputs=(7,),
        )
        values.is_expensive[2] = True
        return values

    assert instructions(normalised(0, 1)).value == [4, 5, 6, 7]
    # A bias that is spread out costs nothing to read again; then the lookup is shared.
    assert instructions(normalised(0)).value == [2, 4, 5, 6, 7]


def test_residual_stream_is_stored() -> None:
    # s = a + b; t = s + product(s): XLA would have to fuse the product to repeat s.
    values = made(
        (INPUT, (), 100),
        (INPUT, (), 100),
        (FUSIBLE, (0, 1), 100),
        (FUSIBLE, (2,), 100),
        (OPAQUE, (3,), 100),
        (FUSIBLE, (2, 4), 100),
        outputs=(5,),
    )
    assert 2 in instructions(values).value


def test_element_wise_result_lies_over_a_dying_operand_and_a_product_does_not() -> None:
    def chain(kind: int) -> Values:
        return made((INPUT, (), 100), (OPAQUE, (0,), 100), (kind, (1,), 100), outputs=(2,))

    assert peak_of(chain(FUSIBLE)) == 100
    assert peak_of(chain(OPAQUE)) == 200


def test_donated_argument_is_overwritten_after_its_last_reader() -> None:
    values = made(
        (INPUT, (), 100),
        (OPAQUE, (0,), 30),
        (REDUCE, (1,), 4),
        (FUSIBLE, (0, 2), 100),
        (OPAQUE, (0,), 10),
        outputs=(3, 4),
    )
    values.aliased[3] = 0
    program = instructions(values)
    update = program.value.index(3)
    assert set(program.after[update]) == {program.value.index(1), program.value.index(4)}
    assert peak_of(values) < 100


def test_two_results_that_overwrite_each_others_arguments_end() -> None:
    values = made(
        (INPUT, (), 100),
        (INPUT, (), 100),
        (FUSIBLE, (0,), 100),
        (FUSIBLE, (1,), 100),
        outputs=(2, 3),
    )
    values.aliased.update({2: 1, 3: 0})
    assert peak_of(values) >= 0


def _shared_divisor(scalar_bytes: int) -> Values:
    """A quotient that two element-wise steps read; its divisor has another reader."""
    values = made(
        (INPUT, (), 100),
        (OPAQUE, (0,), scalar_bytes),
        (FUSIBLE, (0, 1), 100),
        (FUSIBLE, (2,), 100),
        (FUSIBLE, (2,), 100),
        (OPAQUE, (3,), 8),
        (OPAQUE, (4,), 8),
        (OPAQUE, (1,), 8),
        outputs=(5, 6, 7),
    )
    values.is_expensive[2] = True
    values.divisors[2] = 1
    return values


def test_a_quotient_is_a_cheap_product_unless_its_divisor_is_a_shared_scalar() -> None:
    assert 2 not in instructions(_shared_divisor(scalar_bytes=20)).value
    assert 2 in instructions(_shared_divisor(scalar_bytes=4)).value
    without = _shared_divisor(scalar_bytes=20)
    without.divisors.clear()
    assert 2 in instructions(without).value


def _activation(view_shape: tuple[int, ...]) -> Values:
    """A product, a step on it, and two products that read that through views."""
    values = made(
        (INPUT, (), 100),
        (OPAQUE, (0,), 100),
        (FUSIBLE, (1,), 100),
        (VIEW, (2,), 100),
        (OPAQUE, (3,), 8),
        (VIEW, (2,), 100),
        (OPAQUE, (5,), 8),
        outputs=(4, 6),
    )
    values.flat.update({1: (1, 10, 10), 3: view_shape, 5: view_shape})
    return values


def test_a_step_between_products_is_done_once_in_their_shape() -> None:
    # With other shapes each view computes the step again.
    assert instructions(_activation((1, 10, 10))).value == [1, 2, 4, 6]
    assert instructions(_activation((1, 5, 20))).value == [1, 3, 4, 5, 6]


def test_a_step_is_not_done_before_a_reshape_that_something_else_needs() -> None:
    values = _activation((1, 10, 10))
    reduced = values.add(REDUCE, (1,), 10, 0, 0)
    values.outputs.append(reduced)
    assert 2 not in instructions(values).value
