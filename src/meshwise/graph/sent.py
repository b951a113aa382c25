"""What an operator itself sends while it runs: edges of blocks, blocks of a ring, rows."""

from __future__ import annotations

from dataclasses import dataclass

from meshwise.graph.chunks import MOST_KEYS
from meshwise.graph.layout import SUM


@dataclass(frozen=True, slots=True)
class Halo:
    """Edges of the neighbours' blocks that an operand dim needs where its loop is split.

    The dim follows one loop with `block=True`, whose trip count may differ from the size of the
    dim; both are cut into as many blocks.  The local form gets the block with the edges around.

    Attributes:
        operand: Position of the operand.
        dim: Its dim.
        size: Elements of the whole dim.
        low: Elements that each block needs of the block before it.
        high: Elements that each block needs of the block after it.
        monoid: Its neutral element lies beyond the ends of the dim.
    """

    operand: int
    dim: int
    size: int
    low: int
    high: int
    monoid: str = SUM


@dataclass(frozen=True, slots=True)
class Ring:
    """Blocks that go round all devices, so that each block of a loop meets each block of another.

    In attention a device keeps its rows of queries, and blocks of keys and values pass by.  The
    loop splits both.  The rows of queries may be split further by a second loop; devices along it
    see the same keys.

    Attributes:
        loop: The loop whose blocks go round.
        rows: The second loop of the rows that stay: a dim that follows both loops is cut along
            both, `loop` first.
        size: Number of rows that go round.
        operands: Operands that go round, until each device has seen each block.
        results: Results of which each device adds its share to a block that comes by, until the
            block is back at the device where it began.
        halved_operands: Operands with rows, or with what goes round, of a causal mask: no row needs
            a block after it.  Of 2 n halves each device then takes one from the front and one
            from the back, so that all have as much to do, and half of it; empty without such a
            mask.
        halved_results: Results of that kind.
        chunk: The most keys in a chunk, under such a mask.  A device leaves out the chunks of its
            own keys that come after a query block (`graph/chunks`).
    """

    loop: int
    rows: int
    size: int
    operands: tuple[int, ...]
    results: tuple[int, ...] = ()
    halved_operands: tuple[int, ...] = ()
    halved_results: tuple[int, ...] = ()
    chunk: int = MOST_KEYS


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Rows that go to the devices of their groups, and whose results come back.

    Mesh axes mapped to `loop` split the rows and the groups, although no dim follows `loop`: a
    device has some rows of all groups, and the matrices of some groups.  Rows go to the devices of
    their groups in rounds of equal size, as many as the fullest pair of devices needs.

    Attributes:
        loop: The loop of these axes.
        rows: The loop that the outermost dim of the rows follows.
        groups: The loop of the groups; no axis is mapped to it while one is mapped to `loop`.
        operands: Operands that have rows.
        results: Results that have rows.
        dims: The dims of the rows: of each of `operands`, then of each of `results`.
    """

    loop: int
    rows: int
    groups: int
    operands: tuple[int, ...]
    results: tuple[int, ...]
    dims: tuple[tuple[int, ...], ...]
