"""Values of the program of one device: what may need a buffer, and how XLA treats it."""

from __future__ import annotations

from dataclasses import dataclass, field

# How XLA treats an instruction.
INPUT = 0  # Lies outside and stays there.
FUSIBLE = 1  # Is computed element by element inside of what reads it.
VIEW = 2  # The same bytes under another shape.
REDUCE = 3  # Has a buffer; reads through element-wise operands.
OPAQUE = 4  # Operands and results are buffers.
INITIAL = 5  # Initial value of a carry: the buffer that the loop writes.
PART = 6  # One result of a loop.

# No value of more bytes is a single number.
SCALAR_BYTES = 8


@dataclass(slots=True)
class Values:
    """Values in program order, by position; the lists have one entry for each.

    Attributes:
        itemsizes: Bytes of an element, by tensor; without it a byte is an element.
        kind: One of the kinds above.
        inputs: What it reads.
        num_bytes: On one device.
        is_expensive: Not repeated for a second user.
        is_moving: Cannot lie over its operand.
        is_absorbed: May become part of the reduction that reads it.
        tensor: Tensor id in the graph.
        time: Position of the operator.
        is_copy: Made by resharding.
        loops: Loops and branches, with the position of the operator.
        fan: Over how many paths XLA reaches the operand of an instruction, where not one: each
            piece of an all-to-all is cut out by itself, and joined again by itself.
        divisors: Of quotients.
        splats: Scalars that are spread out.
        ynnpack: Element-wise steps that YNNPACK, the library of XLA:CPU, knows.
        spreads: What is spread out along more dims, or gives up dims of one element.
        products: Dense products.
        overwriting: Written over their first operand, if it is not read again.
        branching: Made by a choice between operands, of which XLA emits no second copy.
        flat: Products whose dims XLA splits or joins, and views that a product reads: the shape of
            three dims in which the product is computed.
        outputs: Positions of the results of the graph.
        aliased: Result -> input whose buffer it takes.
        placed: Results that are written into a buffer of the loop around.
        is_body: Of a loop, or a branch.
    """

    itemsizes: tuple[int, ...] = ()
    kind: list[int] = field(default_factory=list[int])
    inputs: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])
    num_bytes: list[int] = field(default_factory=list[int])
    is_expensive: list[bool] = field(default_factory=list[bool])
    is_moving: list[bool] = field(default_factory=list[bool])
    is_absorbed: list[bool] = field(default_factory=list[bool])
    tensor: list[int] = field(default_factory=list[int])
    time: list[int] = field(default_factory=list[int])
    is_copy: list[bool] = field(default_factory=list[bool])
    loops: dict[int, int] = field(default_factory=dict[int, int])
    fan: dict[int, int] = field(default_factory=dict[int, int])
    splats: set[int] = field(default_factory=set[int])
    ynnpack: set[int] = field(default_factory=set[int])
    spreads: set[int] = field(default_factory=set[int])
    products: set[int] = field(default_factory=set[int])
    overwriting: set[int] = field(default_factory=set[int])
    branching: set[int] = field(default_factory=set[int])
    divisors: dict[int, int] = field(default_factory=dict[int, int])
    flat: dict[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])
    outputs: list[int] = field(default_factory=list[int])
    aliased: dict[int, int] = field(default_factory=dict[int, int])
    placed: set[int] = field(default_factory=set[int])
    is_body: bool = False

    def add(
        self,
        kind: int,
        inputs: tuple[int, ...],
        num_bytes: int,
        tensor: int,
        time: int,
        *,
        is_expensive: bool = False,
        is_moving: bool = False,
        is_absorbed: bool = False,
        is_copy: bool = False,
    ) -> int:
        """Append a value; its position."""
        self.kind.append(kind)
        self.inputs.append(inputs)
        self.num_bytes.append(num_bytes)
        self.is_expensive.append(is_expensive)
        self.is_moving.append(is_moving)
        self.is_absorbed.append(is_absorbed)
        self.tensor.append(tensor)
        self.time.append(time)
        self.is_copy.append(is_copy)
        return len(self.kind) - 1

    def num_elements(self, value: int) -> int:
        """Elements on one device."""
        itemsize = self.itemsizes[self.tensor[value]] if self.itemsizes else 1
        return self.num_bytes[value] // max(itemsize, 1)

    def is_wide(self, operand: int, value: int) -> bool:
        """Whether an operand has as many elements as a value, and is not just spread out.

        Only what has one operand can be spread out; rows looked up in a small table count in full.

        Source: XLA InstructionFusion::EffectivelyAtMostUnary leaves out broadcasts, iotas and
        scalars.
        """
        if self.num_elements(operand) < self.num_elements(value):
            return False
        inputs = self.inputs[operand]
        if self.kind[operand] == FUSIBLE and len(inputs) <= 1:
            count = self.num_elements(operand)
            return any(self.num_elements(u) >= count for u in inputs)
        return True

    def narrow_divisor(self, value: int) -> int | None:
        """Of a quotient by what is spread out the value before it was; None for others."""
        divisor = self.divisors.get(value)
        if divisor is None or self.is_wide(divisor, value):
            return None
        size = self.num_bytes[value]
        while self.num_bytes[divisor] >= size and self.inputs[divisor]:
            divisor = self.inputs[divisor][0]
        return divisor

    def rewritten(self, value: int, time: int, num_bytes: int = -1) -> int:
        """The same elements in another order, or some of them: an element-wise copy."""
        size = self.num_bytes[value] if num_bytes < 0 else num_bytes
        return self.add(FUSIBLE, (value,), size, self.tensor[value], time, is_moving=True)
