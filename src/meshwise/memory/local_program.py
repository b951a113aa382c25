"""The program of one device before fusion: one value for each array that may need a buffer.

`memory.program` writes it from a decided graph; a target says which of its values get a
buffer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple


class InstructionKind(IntEnum):
    """How a compiler treats the instruction that makes a value."""

    INPUT = 0  # It lies outside and stays there.
    FUSIBLE = 1  # It is computed element by element inside of what reads it.
    VIEW = 2  # It is the same bytes under another shape.
    REDUCE = 3  # It has a buffer, and reads through element-wise operands.
    OPAQUE = 4  # Its operands and its result are buffers.
    INITIAL = 5  # It is the initial value of a carry: the buffer that the loop writes.
    PART = 6  # It is one result of a loop.
    BARRIER = 7  # It is its first operand, once the last one, a barrier, has run.


class Treatment(NamedTuple):
    """How a compiler treats an operator.

    Attributes:
        kind: The kind of its results.
        is_expensive: Whether it is not repeated for a second reader.
        is_moving: Whether elements change their place, so that a result cannot lie over an operand.
        is_reshaped: Whether it is computed under another shape, so that no reader writes over it.
        is_in_place: Whether its result is written over the first operand.
        rewritten: Positions of the operands that it reads in another order of dims (a FUSIBLE copy
            is made first) or under another shape (a VIEW).
        swapped: Those of a product in which two groups of dims change places, and no others.
        is_copied: Whether its result is copied into another order of dims.
        num_parts: Expensive element-wise values that it needs beside its operands.
        num_indices: Arrays of int32, as long as its last operand, that it needs beside that.
        has_late_indices: Whether these are made once that operand is there.
    """

    kind: InstructionKind
    is_expensive: bool = False
    is_moving: bool = False
    is_reshaped: bool = False
    is_in_place: bool = False
    rewritten: tuple[tuple[int, InstructionKind], ...] = ()
    swapped: tuple[int, ...] = ()
    is_copied: bool = False
    num_parts: int = 0
    num_indices: int = 0
    has_late_indices: bool = False


class LocalValue(NamedTuple):
    """One array on one device.

    Attributes:
        kind: How the compiler treats what makes it.
        inputs: Positions of the values that it reads.
        num_bytes: Its size.
        tensor: Its tensor in the graph.
        time: Position of the operator that makes it, -1 for inputs.
        is_copy: Whether resharding makes it.
        is_summed: Whether that resharding adds up values of several devices.
        is_sent: Whether it comes from other devices as it is.
        is_expensive: As in `Treatment`.
        is_moving: As in `Treatment`.
        is_reshaped: As in `Treatment`.
        is_in_place: As in `Treatment`.
        is_product: Whether a dense product or a convolution makes it.
        is_convolution: Whether it is a convolution.
        is_batched: Whether that product has a batch dim, which both factors and the result have.
        is_grouped: Whether such a product sums over several dims.
        is_narrow: Whether a buffer of it has half the bytes of its elements.
        num_paths: Over how many paths its maker reaches the operands: an all-to-all is cut into
            pieces, and joined again, piece by piece.
    """

    kind: InstructionKind
    inputs: tuple[int, ...]
    num_bytes: int
    tensor: int
    time: int
    is_copy: bool = False
    is_summed: bool = False
    is_sent: bool = False
    is_expensive: bool = False
    is_moving: bool = False
    is_reshaped: bool = False
    is_in_place: bool = False
    is_product: bool = False
    is_convolution: bool = False
    is_batched: bool = False
    is_grouped: bool = False
    is_narrow: bool = False
    num_paths: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalProgram:
    """Values in program order, while `memory.program` appends to them and afterwards.

    Attributes:
        values: The values; they name one another by position.
        outputs: Positions of the results of the graph.
        effects: Positions of what is there for its effect, whether it is read or not.
        aliases: For a result the input whose buffer it takes.
        loops: For each loop or branch the position of its operator.
        branches: The branches among them: their results may lie over what they read.
        in_loop: Results that are written into a buffer of the loop around.
        is_body: Whether it is the body of a loop, or a branch.
    """

    values: list[LocalValue] = field(default_factory=list[LocalValue])
    outputs: list[int] = field(default_factory=list[int])
    effects: set[int] = field(default_factory=set[int])
    aliases: dict[int, int] = field(default_factory=dict[int, int])
    loops: dict[int, int] = field(default_factory=dict[int, int])
    branches: set[int] = field(default_factory=set[int])
    in_loop: set[int] = field(default_factory=set[int])
    is_body: bool = False

    def add(self, value: LocalValue) -> int:
        """Append a value and return its position."""
        self.values.append(value)
        return len(self.values) - 1


class LocalInstruction(NamedTuple):
    """What runs at once, after fusion.

    Attributes:
        value: The value for which it stands (of a loop the loop itself).
        reads: Buffers that it reads; a buffer is named by its value.
        may_read: Buffers of values that it computes itself, as far as is known: to be on the safe
            side they stay until it has run.
        defines: Buffers that it makes.
        may_reuse: Buffers over which its result may lie, if nothing reads them afterwards.
        after: Other instructions, by position, that must run before.
    """

    value: int
    reads: tuple[int, ...]
    may_read: tuple[int, ...]
    defines: tuple[int, ...]
    may_reuse: tuple[int, ...]
    after: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Instructions:
    """The instructions of a program, with the buffers that outlive it.

    Attributes:
        steps: The instructions, in an order in which they could run.
        results: Buffers that leave the program, in the order of the results.
        over_input: Buffers of results that take the place of an argument or of a loop's buffer.
        num_values: Values that are no input and are not fused, views included.
        is_body: Whether it is the body of a loop, or a branch.
    """

    steps: tuple[LocalInstruction, ...]
    results: tuple[int, ...]
    over_input: frozenset[int]
    num_values: int
    is_body: bool = False
