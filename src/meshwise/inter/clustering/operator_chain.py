"""The operators of a step in order, as plain numbers: FLOP, and who reads whose values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from meshwise.kernels.arrays import Bools, Floats, Ints


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OperatorChain:
    """K operators in the order in which they run, and the values that pass between them.

    What comes from outside (parameters, the batch) is not listed: a cut does not move it.

    Attributes:
        flop: FLOP of each operator.
        is_heavy: Which operators are dense products, convolutions and the like.
        producer: For each value the operator that makes it.
        value_bytes: Bytes of each value.
        read_value: For each read the value.
        read_by: For each read the operator; reading a value twice costs no more than once.
    """

    flop: Floats
    is_heavy: Bools
    producer: Ints
    value_bytes: Ints
    read_value: Ints
    read_by: Ints

    def __post_init__(self) -> None:
        """Check that arrays agree.

        Raises:
            ValueError: lengths or indices do not fit, or a value is read before it is made.
        """
        num_values = len(self.producer)
        if len(self.flop) < 1 or len(self.is_heavy) != len(self.flop):
            raise ValueError("a chain needs at least one operator, and `is_heavy` for each")
        if len(self.value_bytes) != num_values or len(self.read_value) != len(self.read_by):
            raise ValueError("`value_bytes` must fit `producer`, and `read_by` `read_value`")
        if not _lies_within(self.read_value, num_values):
            raise ValueError(f"`read_value` must lie in 0..{num_values - 1}")
        for name, index in (("producer", self.producer), ("read_by", self.read_by)):
            if not _lies_within(index, len(self.flop)):
                raise ValueError(f"`{name}` must lie in 0..{len(self.flop) - 1}")
        if np.any(self.read_by <= self.producer[self.read_value]):
            raise ValueError("an operator reads a value that is made by itself or later")

    @property
    def num_operators(self) -> int:
        """K."""
        return len(self.flop)


def _lies_within(index: Ints, size: int) -> bool:
    return not len(index) or bool(index.min() >= 0 and index.max() < size)


def received_bytes(chain: OperatorChain, boundaries: Ints) -> Ints:
    """C of eq. 6 between chosen boundaries: bytes that a run of operators gets from before it.

    A value is counted once however often it is read.  Its reads cut the places where a run may
    begin: for a run that begins after read q-1 and not after read q, read q is the first that it
    may hold, so the value counts in every such run that reaches read q.  That is a rectangle in
    (begin, end); all are summed at once.

    Args:
        chain: The operators.
        boundaries: Increasing operator indices, 0 first and K last.

    Returns:
        Entry [a, b]: bytes that operators `boundaries[a]` to `boundaries[b] - 1` read of what is
        made before `boundaries[a]`; 0 for b <= a.
    """
    order = np.lexsort((chain.read_by, chain.read_value))
    value, reader = chain.read_value[order], chain.read_by[order]
    before = chain.producer[value]
    same = np.flatnonzero(value[1:] == value[:-1]) + 1
    before[same] = reader[same - 1]
    low: Any = np.searchsorted(boundaries, before, side="right")
    high: Any = np.searchsorted(boundaries, reader, side="right")
    size = len(boundaries)
    table = np.zeros((size + 1, size + 1), np.int64)
    np.add.at(table, (low, high), chain.value_bytes[value])
    np.subtract.at(table, (high, high), chain.value_bytes[value])
    np.cumsum(table, axis=0, out=table)
    np.cumsum(table, axis=1, out=table)
    return np.triu(table[:size, :size], 1)


def crossing_bytes(chain: OperatorChain) -> Ints:
    """Return the bytes that are made before each operator and read by it or later.

    Args:
        chain: The operators.

    Returns:
        K entries, the first is 0.
    """
    last = chain.producer.copy()
    np.maximum.at(last, chain.read_value, chain.read_by)
    change = np.zeros(chain.num_operators + 1, np.int64)
    np.add.at(change, chain.producer + 1, chain.value_bytes)
    np.subtract.at(change, last + 1, chain.value_bytes)
    return np.cumsum(change)[: chain.num_operators]
