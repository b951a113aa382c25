"""Rows of a batch: which devices take which, and that no others are needed."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from meshwise.errors import DataError
from meshwise.runtime.host_rows import HostRows, Span, merged, rows_on_devices
from meshwise.runtime.placement import placed
from meshwise.trace.step import abstract
from meshwise.trace.weak_types import weak_types

SPANS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=6)


@given(SPANS)
def test_merged_spans_are_the_same_rows(spans: list[Span]) -> None:
    found = merged(spans)
    assert [n for span in found for n in range(*span)] == sorted(
        {n for span in spans for n in range(*span)}
    )
    assert all(a < b for a, b in found)
    assert all(one[1] < other[0] for one, other in itertools.pairwise(found))


@pytest.mark.parametrize("spec", [P(), P("x"), P("y"), P(("x", "y")), P(("y", "x")), P(None, "x")])
@pytest.mark.parametrize("dim", [0, 1])
def test_rows_on_devices_are_those_of_every_device(spec: P, dim: int) -> None:
    mesh = Mesh(np.array(jax.devices()[2:8]).reshape(3, 2), ("x", "y"))
    sharding, shape = NamedSharding(mesh, spec), (12, 6)
    expected: set[int] = set()
    for index in sharding.devices_indices_map(shape).values():
        expected |= set(range(shape[dim])[index[dim]])
    found = rows_on_devices(sharding, shape, dim)
    assert [n for span in found for n in range(*span)] == sorted(expected)


def rows_of(whole: np.ndarray[Any, Any], dim: int, spans: list[Span]) -> HostRows:
    before = (slice(None),) * dim
    pieces = [(a, whole[(*before, slice(a, b))]) for a, b in merged(spans)]
    return HostRows(whole.shape, whole.dtype, dim=dim, pieces=pieces, name="the batch")


@given(SPANS, st.integers(0, 1), st.data())
def test_a_box_is_that_of_the_whole_or_an_error(spans: list[Span], dim: int, data: Any) -> None:
    whole = np.arange(400).reshape(20, 20)
    rows = rows_of(whole, dim, spans)
    start = data.draw(st.integers(0, 19))
    stop = data.draw(st.integers(start + 1, 20))
    index = [slice(2, 5), slice(2, 5)]
    index[dim] = slice(start, stop)
    there = {n for span in spans for n in range(*span)}
    if there.issuperset(range(start, stop)):
        np.testing.assert_array_equal(rows[tuple(index)], whole[tuple(index)])
    else:
        with pytest.raises(DataError, match=f"needs rows {start} to {stop} of the batch"):
            _ = rows[tuple(index)]
    part = rows.between(start, stop)
    assert part.shape[dim] == stop - start
    taken = {start + n for span in part.spans for n in range(*span)}
    assert taken == there & set(range(start, stop))
    for first, values in part.pieces:
        place = [slice(None), slice(None)]
        place[dim] = slice(start + first, start + first + values.shape[dim])
        np.testing.assert_array_equal(values, whole[tuple(place)])


def test_rows_are_an_argument_as_an_array_is() -> None:
    whole = np.arange(12, dtype=np.float32).reshape(6, 2)
    rows = rows_of(whole, 0, [(0, 6)])
    assert abstract(rows) == abstract(whole)
    assert weak_types([rows]) == (False,)
    mesh = Mesh(np.array(jax.devices()[:2]), ("x",))
    np.testing.assert_array_equal(placed([rows], [NamedSharding(mesh, P("x"))])[0], whole)
    assert jax.tree.leaves({"x": rows}) == [rows]
    assert rows != rows_of(whole, 0, [(0, 6)])
    assert "rows 0 to 6 of 6" in repr(rows)
