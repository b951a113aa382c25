"""What XLA:GPU fuses and in which order it runs, on programs of known memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwise.memory.gpu.order import order_with_late_sums
from meshwise.memory.gpu.target import GPU
from meshwise.memory.local_program import (
    InstructionKind,
    Instructions,
    LocalInstruction,
    LocalProgram,
    LocalValue,
)

INPUT, FUSIBLE = InstructionKind.INPUT, InstructionKind.FUSIBLE
VIEW, BARRIER = InstructionKind.VIEW, InstructionKind.BARRIER
REDUCE, OPAQUE = InstructionKind.REDUCE, InstructionKind.OPAQUE

Row = tuple[InstructionKind, tuple[int, ...], int]


def instructions_of(*rows: Row, outputs: tuple[int, ...], dear: int = -1) -> Instructions:
    """A program from (kind, inputs, bytes), of which one value is expensive."""
    program = LocalProgram()
    for v, (kind, inputs, num_bytes) in enumerate(rows):
        program.add(LocalValue(kind, inputs, num_bytes, 0, 0, is_expensive=v == dear))
    program.outputs.extend(outputs)
    return GPU.instructions(program)


def made_by(program: Instructions) -> list[tuple[int, ...]]:
    return [step.defines for step in program.steps]


def two_readers(source_bytes: int) -> list[Row]:
    """exp(product), read by a sum and by a second product."""
    return [
        (INPUT, (), 64),
        (OPAQUE, (0,), source_bytes),
        (FUSIBLE, (1,), 128),
        (REDUCE, (2,), 8),
        (FUSIBLE, (2, 3), 128),
        (OPAQUE, (4,), 8),
    ]


@pytest.mark.parametrize("source_bytes", [64, 128])
def test_an_expensive_value_is_computed_again_where_that_moves_fewer_bytes(
    source_bytes: int,
) -> None:
    again = instructions_of(*two_readers(source_bytes), outputs=(5,), dear=2)
    assert made_by(again) == [(1,), (3,), (4,), (5,)]


def test_an_expensive_value_is_kept_where_that_moves_fewer_bytes() -> None:
    kept = instructions_of(*two_readers(512), outputs=(5,), dear=2)
    assert made_by(kept) == [(1,), (2,), (3,), (4,), (5,)]


def test_views_of_a_value_lie_where_it_lies() -> None:
    rows: list[Row] = [
        (INPUT, (), 128),
        (OPAQUE, (0,), 128),
        (FUSIBLE, (1,), 128),
        (VIEW, (2,), 128),
        (VIEW, (2,), 128),
        (OPAQUE, (3,), 8),
        (OPAQUE, (4,), 8),
    ]
    assert made_by(instructions_of(*rows, outputs=(5, 6))) == [(1,), (2,), (5,), (6,)]


def test_the_result_of_a_product_is_not_written_over() -> None:
    rows: list[Row] = [
        (INPUT, (), 128),
        (OPAQUE, (0,), 128),
        (FUSIBLE, (1,), 128),
        (REDUCE, (2,), 8),
        (FUSIBLE, (2, 3), 128),
    ]
    # An input is one of the sources, so that the value is not cheaper to compute again.
    rows[2] = (FUSIBLE, (0, 1), 128)
    made = instructions_of(*rows, outputs=(2, 4))
    assert [step.may_reuse for step in made.steps] == [(), (), (), (2,)]


def test_what_passes_a_barrier_waits_for_all_that_passes() -> None:
    rows: list[Row] = [
        (INPUT, (), 128),
        (OPAQUE, (0,), 128),
        (OPAQUE, (0,), 64),
        (OPAQUE, (1, 2), 0),
        (BARRIER, (1, 3), 128),
        (OPAQUE, (4,), 8),
        (OPAQUE, (1,), 8),
    ]
    made = instructions_of(*rows, outputs=(6, 5))
    # It has no buffer of its own.
    assert made_by(made) == [(1,), (2,), (3,), (5,), (6,)]
    assert [step.reads for step in made.steps] == [(0,), (0,), (1, 2), (1, 3), (1,)]
    for order in GPU.orders(made, [LocalValue(*row, 0, 0) for row in rows]):
        assert order.index(3) > max(order.index(i) for i in (0, 1, 2))


def test_a_cheap_value_that_passes_a_barrier_is_not_computed_again() -> None:
    rows: list[Row] = [
        (INPUT, (), 128),
        (FUSIBLE, (0,), 128),
        (OPAQUE, (1,), 0),
        (BARRIER, (1, 2), 128),
        (FUSIBLE, (3,), 128),
        (OPAQUE, (4,), 8),
    ]
    assert made_by(instructions_of(*rows, outputs=(5,))) == [(1,), (2,), (4,), (5,)]


def test_what_reads_the_same_is_made_at_once() -> None:
    rows: list[Row] = [
        (INPUT, (), 64),
        (OPAQUE, (0,), 128),
        (FUSIBLE, (1,), 128),
        (FUSIBLE, (1,), 128),
        (FUSIBLE, (1,), 256),
        *((OPAQUE, (v,), 8) for v in (2, 3, 4)),
    ]
    assert made_by(instructions_of(*rows, outputs=(5, 6, 7)))[:3] == [(1,), (2, 3), (4,)]


@st.composite
def programs(draw: st.DrawFn) -> tuple[Instructions, list[LocalValue]]:
    """Instructions with one buffer each, which read earlier ones."""
    count = draw(st.integers(1, 12))
    steps: list[LocalInstruction] = []
    values: list[LocalValue] = []
    for i in range(count):
        earlier = st.sets(st.integers(0, i - 1), max_size=3) if i else st.just(set[int]())
        reads, after = tuple(sorted(draw(earlier))), tuple(sorted(draw(earlier)))
        steps.append(LocalInstruction(i, reads, (), (i,), (), after))
        values.append(LocalValue(OPAQUE, reads, draw(st.integers(1, 100)), i, i))
    results = tuple(sorted(draw(st.sets(st.integers(0, count - 1), min_size=1))))
    program = Instructions(
        steps=tuple(steps), results=results, over_input=frozenset(), num_values=count
    )
    return program, values


@given(programs())
def test_the_order_runs_each_instruction_once_after_what_it_reads(
    drawn: tuple[Instructions, list[LocalValue]],
) -> None:
    program, values = drawn
    for order in GPU.orders(program, values):
        assert sorted(order) == list(range(len(program.steps)))
        place = {i: now for now, i in enumerate(order)}
        for i, step in enumerate(program.steps):
            assert all(place[j] < place[i] for j in (*step.reads, *step.after))


@st.composite
def donating_programs(draw: st.DrawFn) -> LocalProgram:
    """A program whose results may take the places of its arguments."""
    program = LocalProgram()
    count, made = draw(st.integers(1, 3)), draw(st.integers(1, 8))
    for _ in range(count):
        program.add(LocalValue(INPUT, (), 128, 0, 0))
    for v in range(count, count + made):
        inputs = tuple(sorted(draw(st.sets(st.integers(0, v - 1), min_size=1, max_size=3))))
        program.add(LocalValue(draw(st.sampled_from((FUSIBLE, OPAQUE))), inputs, 128, v, v))
    results = draw(st.permutations(range(count, count + made)))[:count]
    program.outputs.extend(results)
    program.aliases.update(zip(results, draw(st.permutations(range(count))), strict=False))
    return program


@given(donating_programs())
def test_the_order_runs_what_reads_a_donated_argument_first(program: LocalProgram) -> None:
    made = GPU.instructions(program)
    makers = {b: i for i, step in enumerate(made.steps) for b in step.defines}
    for order in GPU.orders(made, program.values):
        place = {i: now for now, i in enumerate(order)}
        assert sorted(place) == list(range(len(made.steps)))
        for result in made.over_input:
            for i, step in enumerate(made.steps):
                is_reader = program.aliases[result] in step.reads and i != makers[result]
                assert not is_reader or place[i] < place[makers[result]]


def order_of(
    sizes: list[int],
    reads: list[tuple[int, ...]],
    results: tuple[int, ...],
    *,
    sums: tuple[int, ...] = (),
    products: tuple[int, ...] = (),
) -> list[int]:
    """The order of XLA:GPU's list scheduler, of instructions that make a value each."""
    steps = [LocalInstruction(i, r, (), (i,), ()) for i, r in enumerate(reads)]
    values = [
        LocalValue(OPAQUE, r, size, 0, 0, is_summed=i in sums, is_product=i in products)
        for i, (r, size) in enumerate(zip(reads, sizes, strict=True))
    ]
    program = Instructions(
        steps=tuple(steps), results=results, over_input=frozenset(), num_values=len(steps)
    )
    return order_with_late_sums(program, values)


def test_what_frees_memory_runs_before_what_takes_it() -> None:
    # 0 -> 1 (large) -> 3 (small); 0 -> 2 (large) -> 4 (small).
    reads: list[tuple[int, ...]] = [(), (0,), (0,), (1,), (2,)]
    assert order_of([10, 100, 100, 1, 1], reads, (3, 4)) == [0, 1, 3, 2, 4]


@pytest.mark.parametrize(("sums", "order"), [((), [0, 1, 2, 3, 4]), ((3,), [0, 2, 4, 1, 3])])
def test_gradients_of_weights_that_are_summed_run_last(
    sums: tuple[int, ...], order: list[int]
) -> None:
    # A cotangent (0); the gradient of a weight (1) and its sum (3); the next cotangent (2, 4).
    reads: list[tuple[int, ...]] = [(), (0,), (0,), (1,), (2,)]
    found = order_of([100, 10, 100, 10, 100], reads, (3, 4), sums=sums, products=(0, 1, 2, 4))
    assert found == order


def test_what_another_product_needs_is_not_late() -> None:
    # The sum of a product (1) over devices feeds the next product (2).
    reads: list[tuple[int, ...]] = [(), (0,), (1,), (0,), (3,)]
    found = order_of([8, 1, 4, 2, 9], reads, (2, 4), sums=(1, 4), products=(0, 2, 3))
    assert found == [0, 1, 2, 3, 4]
