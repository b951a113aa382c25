"""Ragged products in their modes; groups are empty, full, and end before the rows do."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import lax

from rule_cases.case import Case, ints

_SIZES = np.array([3, 0, 8, 2], np.int32)
_CONTRACTED = lax.RaggedDotDimensionNumbers(
    dot_dimension_numbers=(((0,), (0,)), ((), ())),
    lhs_ragged_dimensions=[0],
    rhs_group_dimensions=[],
)
_BATCHED = lax.RaggedDotDimensionNumbers(
    dot_dimension_numbers=(((2,), (2,)), ((0,), (1,))),
    lhs_ragged_dimensions=[1],
    rhs_group_dimensions=[0],
)
_ROWS_OF_EACH = lax.RaggedDotDimensionNumbers(
    dot_dimension_numbers=(((2,), (1,)), ((), ())),
    lhs_ragged_dimensions=[1],
    rhs_group_dimensions=[0],
)
_CONTRACTED_OF_EACH = lax.RaggedDotDimensionNumbers(
    dot_dimension_numbers=(((0, 1), (0, 1)), ((), ())),
    lhs_ragged_dimensions=[1],
    rhs_group_dimensions=[],
)
_OF_BATCH = lax.RaggedDotDimensionNumbers(
    dot_dimension_numbers=(((2,), (1,)), ((0,), (0,))),
    lhs_ragged_dimensions=[0],
    rhs_group_dimensions=[],
)


def _general(numbers: Any) -> Any:
    return lambda x, y, sizes: lax.ragged_dot_general(x, y, sizes, numbers)


CASES = (
    Case(
        "ragged_dot_general",
        "rows in groups",
        lax.ragged_dot,
        (ints(16, 4), ints(4, 4, 8), _SIZES),
    ),
    Case(
        "ragged_dot_general",
        "more rows in groups than there are",
        _general(_ROWS_OF_EACH),
        (ints(2, 8, 4), ints(2, 4, 8), np.array([[6, 6], [2, 7]], np.int32)),
    ),
    Case(
        "ragged_dot_general",
        "contracted rows",
        _general(_CONTRACTED),
        (ints(16, 4), ints(16, 8), _SIZES),
    ),
    Case(
        "ragged_dot_general",
        "a batch",
        _general(_BATCHED),
        (ints(2, 8, 4), ints(4, 2, 4, 8), np.array([[3, 0, 3, 1], [1, 2, 4, 0]], np.int32)),
    ),
    Case(
        "ragged_dot_general",
        "rows of each sequence",
        _general(_ROWS_OF_EACH),
        (ints(2, 8, 4), ints(4, 4, 8), np.array([[3, 0, 4, 1], [1, 2, 2, 0]], np.int32)),
    ),
    Case(
        "ragged_dot_general",
        "contracted rows of each sequence",
        _general(_CONTRACTED_OF_EACH),
        (ints(2, 8, 4), ints(2, 8, 8), np.array([[3, 0, 4, 1], [1, 2, 2, 0]], np.int32)),
    ),
    Case(
        "ragged_dot_general",
        "groups of the batch",
        _general(_OF_BATCH),
        (ints(8, 4, 4), ints(8, 4, 8), np.array([3, 5], np.int32)),
    ),
)
