"""The memory model on programs whose memory is known in closed form."""

from __future__ import annotations

from meshwise.memory.cpu.target import CPU
from meshwise.memory.heap import heap_bytes
from meshwise.memory.live import most_live
from meshwise.memory.local_program import (
    InstructionKind,
    LocalInstruction,
    LocalProgram,
    LocalValue,
)

INPUT, FUSIBLE, VIEW = InstructionKind.INPUT, InstructionKind.FUSIBLE, InstructionKind.VIEW
REDUCE, OPAQUE = InstructionKind.REDUCE, InstructionKind.OPAQUE
TARGET = CPU


def made(
    *rows: tuple[InstructionKind, tuple[int, ...], int], outputs: tuple[int, ...]
) -> LocalProgram:
    """A program from (kind, inputs, bytes); sizes are multiples of the heap's alignment."""
    program = LocalProgram()
    for kind, inputs, num_bytes in rows:
        program.add(LocalValue(kind, inputs, num_bytes, 0, 0))
    program.outputs.extend(outputs)
    return program


def changed(program: LocalProgram, v: int, **fields: bool) -> LocalProgram:
    program.values[v] = program.values[v]._replace(**fields)
    return program


def steps_of(program: LocalProgram) -> tuple[LocalInstruction, ...]:
    return TARGET.instructions(program).steps


def values_of(program: LocalProgram) -> list[int]:
    return [step.value for step in steps_of(program)]


def peak_of(program: LocalProgram) -> int:
    """Heap of all that is not an argument, results included."""
    fused = TARGET.instructions(program)
    sizes = [value.num_bytes for value in program.values]
    (order,) = TARGET.orders(fused, program.values)
    return heap_bytes(most_live(fused, sizes, frozenset(), {}, order).lifetimes)


def test_element_wise_chain_before_a_product_is_one_buffer() -> None:
    program = made(
        (INPUT, (), 128),
        (FUSIBLE, (0,), 128),
        (FUSIBLE, (1,), 128),
        (OPAQUE, (2,), 64),
        outputs=(3,),
    )
    assert values_of(program) == [2, 3]
    assert peak_of(program) == 192


def test_cheap_value_is_made_again_for_each_reader_and_an_expensive_one_is_not() -> None:
    rows = (
        (INPUT, (), 128),
        (FUSIBLE, (0,), 128),
        (FUSIBLE, (1,), 128),
        (FUSIBLE, (1,), 128),
        (OPAQUE, (2,), 8),
        (OPAQUE, (3,), 8),
    )
    assert 1 not in values_of(made(*rows, outputs=(4, 5)))
    assert 1 in values_of(changed(made(*rows, outputs=(4, 5)), 1, is_expensive=True))


def test_a_repeated_value_stays_until_its_readers_ran_and_so_does_what_it_is_made_of() -> None:
    # e = exp(x); m = where(mask, e, 0); m / sum(m): the sum reads m, the quotient makes it again.
    rows = (
        (INPUT, (), 128),
        (FUSIBLE, (0,), 128),
        (FUSIBLE, (1,), 128),
        (REDUCE, (2,), 64),
        (FUSIBLE, (2, 3), 128),
        (OPAQUE, (4,), 8),
    )
    assert values_of(made(*rows, outputs=(5,))) == [2, 3, 4, 5]
    program = changed(made(*rows, outputs=(5,)), 1, is_expensive=True)
    quotient = next(step for step in steps_of(program) if step.value == 4)
    assert values_of(program) == [1, 2, 3, 4, 5]
    assert set(quotient.reads) == {1, 3}
    assert quotient.may_read == (2,)


def test_element_wise_result_lies_over_a_dying_operand_and_a_product_does_not() -> None:
    def chain(kind: InstructionKind) -> LocalProgram:
        return made((INPUT, (), 128), (OPAQUE, (0,), 128), (kind, (1,), 128), outputs=(2,))

    assert peak_of(chain(FUSIBLE)) == 128
    assert peak_of(chain(OPAQUE)) == 256
    assert peak_of(changed(chain(FUSIBLE), 2, is_moving=True)) == 256
    assert peak_of(changed(chain(FUSIBLE), 1, is_reshaped=True)) == 256
    assert peak_of(changed(chain(OPAQUE), 2, is_in_place=True)) == 128


def test_a_result_is_not_made_over_what_it_reads_through_a_view() -> None:
    program = made(
        (INPUT, (), 128),
        (OPAQUE, (0,), 128),
        (VIEW, (1,), 128),
        (FUSIBLE, (2,), 128),
        outputs=(3,),
    )
    assert values_of(program) == [1, 3]
    assert peak_of(program) == 256


def test_donated_argument_is_overwritten_after_its_last_reader() -> None:
    program = made(
        (INPUT, (), 128),
        (OPAQUE, (0,), 64),
        (REDUCE, (1,), 64),
        (FUSIBLE, (0, 2), 128),
        (OPAQUE, (0,), 64),
        outputs=(3, 4),
    )
    program.aliases[3] = 0
    values = values_of(program)
    update = steps_of(program)[values.index(3)]
    assert set(update.after) == {values.index(1), values.index(4)}
    assert TARGET.instructions(program).over_input == {3}
    assert peak_of(program) < 256


def test_of_two_results_that_overwrite_each_others_arguments_one_is_copied() -> None:
    program = made(
        (INPUT, (), 128),
        (INPUT, (), 128),
        (FUSIBLE, (0,), 128),
        (FUSIBLE, (1,), 128),
        outputs=(2, 3),
    )
    program.aliases.update({2: 1, 3: 0})
    assert TARGET.instructions(program).over_input == {2}
    assert peak_of(program) == 128


def test_a_result_that_is_read_beside_what_it_overwrites_is_copied() -> None:
    # sum(f(old), f(new)) of products, so that nothing is computed again.
    program = made(
        (INPUT, (), 128),
        (OPAQUE, (0,), 128),
        (OPAQUE, (0, 1), 64),
        outputs=(1, 2),
    )
    program.aliases[1] = 0
    assert TARGET.instructions(program).over_input == frozenset()
    assert peak_of(program) == 192


def test_a_value_that_is_never_read_is_not_made() -> None:
    program = made(
        (INPUT, (), 128), (FUSIBLE, (0,), 128), (FUSIBLE, (1,), 128), (OPAQUE, (0,), 64),
        outputs=(3,),
    )  # fmt: skip
    assert values_of(program) == [3]
