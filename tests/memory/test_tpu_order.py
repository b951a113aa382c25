"""In which order XLA:TPU runs a program, which sums it joins, and which arguments it copies."""

from __future__ import annotations

from meshwise.graph.graph import Graph, Operator, Tensor
from meshwise.graph.layout import Layout
from meshwise.graph.loops import Loop, LoopRule
from meshwise.graph.structure import scan_structure
from meshwise.memory.invariants import rounded_constants
from meshwise.memory.live import most_live
from meshwise.memory.local_program import (
    InstructionKind,
    Instructions,
    LocalProgram,
    LocalValue,
)
from meshwise.memory.target import Target
from meshwise.memory.tpu.target import TPU, TPU_V5P
from meshwise.plan.decision import GraphDecision, OperatorDecision, Use
from meshwise.units import MIB

INPUT, FUSIBLE = InstructionKind.INPUT, InstructionKind.FUSIBLE
OPAQUE = InstructionKind.OPAQUE


def value(kind: InstructionKind, *inputs: int, num_bytes: int = 64) -> LocalValue:
    return LocalValue(kind, inputs, num_bytes, 0, 0)


def product(*inputs: int, num_bytes: int = 64) -> LocalValue:
    return value(OPAQUE, *inputs, num_bytes=num_bytes)._replace(is_product=True)


def summed(*inputs: int, num_bytes: int = 64) -> LocalValue:
    return value(OPAQUE, *inputs, num_bytes=num_bytes)._replace(is_copy=True, is_summed=True)


def program(*values: LocalValue, outputs: tuple[int, ...]) -> LocalProgram:
    found = LocalProgram()
    for row in values:
        found.add(row)
    found.outputs.extend(outputs)
    return found


def order_of(target: Target, found: LocalProgram) -> list[int]:
    """The values in the order in which they are made."""
    made = target.instructions(found)
    return [made.steps[i].value for i in target.orders(made, found.values)[0]]


def backward(*, is_sent: bool) -> LocalProgram:
    """A gradient of a weight (3) that frees what it reads, and one of activations (2, 4)."""
    rows = (
        value(INPUT),
        product(0, num_bytes=256)._replace(is_sent=is_sent),
        product(0, num_bytes=256),
        product(1, num_bytes=8),
        product(2),
    )
    return program(*rows, outputs=(4, 3))


def test_what_frees_most_runs_first_unless_something_is_hidden() -> None:
    assert order_of(TPU, backward(is_sent=False)) == [1, 3, 2, 4]
    assert order_of(TPU_V5P, backward(is_sent=True)) == [1, 3, 2, 4]
    assert order_of(TPU, backward(is_sent=True))[-1] == 3


def test_gradients_run_at_once_in_loops_and_beside_convolutions() -> None:
    found = backward(is_sent=True)
    body = LocalProgram(values=found.values, outputs=found.outputs, is_body=True)
    assert order_of(TPU, body) == [1, 3, 2, 4]
    found.values[2] = found.values[2]._replace(is_convolution=True)
    assert order_of(TPU, found) == [1, 3, 2, 4]


def test_zeros_are_made_when_they_are_wanted() -> None:
    rows = (value(OPAQUE, num_bytes=8), value(INPUT), product(1, num_bytes=512), product(0, 2))
    assert order_of(TPU, program(*rows, outputs=(3,))) == [2, 0, 3]
    # What nothing reads comes last.
    alone = (value(OPAQUE, num_bytes=8), value(INPUT), product(1, num_bytes=512))
    assert order_of(TPU, program(*alone, outputs=(0, 2))) == [2, 0]


def sums(num_bytes: int) -> list[tuple[int, ...]]:
    """The buffers of instructions that add up two gradients of the same size."""
    rows = (
        value(INPUT),
        product(0, num_bytes=num_bytes),
        summed(1, num_bytes=num_bytes),
        product(0, num_bytes=num_bytes),
        summed(3, num_bytes=num_bytes),
    )
    made = TPU.instructions(program(*rows, outputs=(2, 4)))
    return [step.defines for step in made.steps if step.value in (2, 4)]


def test_sums_of_gradients_are_joined_up_to_a_size() -> None:
    assert sums(60 * MIB) == [(2, 4)]
    assert sums(61 * MIB) == [(2,), (4,)]


def test_joint_sums_lie_where_their_terms_lay() -> None:
    rows = (value(INPUT), product(0), summed(1), product(0), summed(3))
    found = program(*rows, outputs=(2, 4))
    made = TPU.instructions(found)
    (order,) = TPU.orders(made, found.values)
    sizes = [row.num_bytes for row in found.values]
    assert most_live(made, sizes, frozenset(), {}, order).num_bytes == 128


def test_sums_that_products_read_are_not_joined() -> None:
    rows = (value(INPUT), product(0), summed(1), product(2), summed(3))
    made = TPU.instructions(program(*rows, outputs=(4,)))
    assert [step.defines for step in made.steps] == [(1,), (2,), (3,), (4,)]


def updated(*, is_sent: bool) -> Instructions:
    """A program of which the result lies over an argument that a product reads."""
    new = value(OPAQUE, 1)._replace(is_copy=True, is_sent=is_sent)
    found = program(value(INPUT), product(0, num_bytes=8), new, outputs=(2,))
    found.aliases[2] = 0
    return TPU.instructions(found)


def test_an_argument_is_copied_where_a_gather_overwrites_it() -> None:
    assert [step.defines for step in updated(is_sent=True).steps] == [(0,), (1,), (2,)]
    assert [step.defines for step in updated(is_sent=False).steps] == [(1,), (2,)]


def test_most_live_leaves_out_what_is_inside() -> None:
    found = program(value(INPUT), product(0), product(1, num_bytes=128), outputs=(2,))
    made = TPU.instructions(found)
    top = most_live(made, [0, 64, 128], frozenset(), {0: 1000}, [0, 1])
    assert (top.num_bytes, top.own_bytes) == (1064, 192)


def loop(dtype: str, length: int) -> tuple[Operator, OperatorDecision]:
    """A loop whose body multiplies a carry by a constant."""
    rule = LoopRule(
        (Loop(8, "parallel"), Loop(8, "parallel"), Loop(8, "sum")),
        (((0,), (2,)), ((2,), (1,))),
        (((0,), (1,)),),
    )
    dot = Operator(kind="dot_general", inputs=(0, 1), outputs=(2,), rule=rule, flop=0.0, heavy=True)
    tensors = tuple(Tensor(shape=(8, 8), dtype=dtype, itemsize=4) for _ in range(3))
    body = Graph(tensors=tensors, operators=(dot,), inputs=(0, 1), outputs=(2,))
    whole = Layout(dims=((), ()))
    use = Use(group=0, via=whole, layout=whole)
    decided = GraphDecision(
        inputs=(whole, whole),
        operators=(OperatorDecision(strategy=(), uses=(use, use), results=(whole,)),),
        outputs=(use,),
    )
    structure = scan_structure(
        num_operands=2, num_results=1, num_consts=1, num_carry=1, length=length
    )
    op = Operator(
        kind="scan", inputs=(0, 1), outputs=(2,), rule=rule, flop=0.0,
        structure=structure, bodies=(body,),
    )  # fmt: skip
    chosen = OperatorDecision(strategy=(), uses=(use, use), results=(whole,), bodies=(decided,))
    return op, chosen


def test_a_loop_rounds_its_float32_weights_once() -> None:
    # The constant comes first; the carry changes.
    assert rounded_constants(*loop("float32", 4), (1,)) == [(0, 128)]
    assert rounded_constants(*loop("bfloat16", 4), (1,)) == []
    assert rounded_constants(*loop("float32", 1), (1,)) == []
