from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from meshwise.graph.loops import DimMap, Loop
from meshwise.rules.shape import common_atoms
from oracle.every_strategy import MESHES, check_run, runs_of

FACTORS = st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=5)


@st.composite
def shape_pairs(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two shapes of equal element count: one list of factors, grouped and shuffled twice."""
    factors = draw(FACTORS)
    shapes = []
    for _ in range(2):
        order = draw(st.one_of(st.just(factors), st.permutations(factors)))
        marks = draw(st.lists(st.booleans(), min_size=len(order), max_size=len(order)))
        dims = [1]
        for factor, new in zip(order, marks, strict=True):
            if new:
                dims.append(factor)
            else:
                dims[-1] *= factor
        shapes.append(tuple(dims))
    return shapes[0], shapes[1]


@given(shape_pairs())
@settings(max_examples=300, deadline=None)
def test_atoms_name_the_same_element_on_both_sides(
    shapes: tuple[tuple[int, ...], tuple[int, ...]],
) -> None:
    """The atom coordinates of a flat index are the same, read through either shape."""
    before, after = shapes
    atoms, left, right, stuck = common_atoms(before, after)
    count = math.prod(before)

    def coordinates(shape: tuple[int, ...], maps: DimMap) -> dict[int, np.ndarray]:
        found: dict[int, np.ndarray] = {}
        places = np.unravel_index(np.arange(count), shape)
        for place, size, loops in zip(places, shape, maps, strict=True):
            rest = size
            for loop in loops:
                rest //= atoms[loop].size
                found[loop] = place // rest % atoms[loop].size
        return found

    first, second = coordinates(before, left), coordinates(after, right)
    assert set(first) == set(second) == set(range(len(atoms)))
    for loop in first:
        np.testing.assert_array_equal(first[loop], second[loop])
    covered = math.prod(loop.size for loop in atoms) == count
    assert covered is not stuck


@given(shape_pairs(), st.sampled_from(MESHES))
@settings(max_examples=12, deadline=None)
def test_reshape_under_every_strategy(
    shapes: tuple[tuple[int, ...], tuple[int, ...]], sizes: tuple[int, ...]
) -> None:
    before, after = shapes
    value = np.arange(math.prod(before), dtype=np.float32).reshape(before)
    (run,) = runs_of(
        lambda x: lax.reshape_p.bind(x, new_sizes=after, dimensions=None, sharding=None),
        [value],
        "reshape",
    )
    assert check_run(run, sizes, limit=32) >= 1


@pytest.mark.parametrize(
    ("before", "after", "sizes", "left", "right"),
    [
        ((8, 3, 4), (24, 4), (8, 3, 4), ((0,), (1,), (2,)), ((0, 1), (2,))),
        ((16, 12), (16, 4, 3), (16, 4, 3), ((0,), (1, 2)), ((0,), (1,), (2,))),
        ((6, 4), (4, 6), (2,), ((0,), ()), ((0,), ())),
        ((6, 4, 5), (4, 6, 5), (2, 5), ((0,), (), (1,)), ((0,), (), (1,))),
        ((3, 2), (2, 3), (), ((), ()), ((), ())),
        ((1, 8), (8, 1, 1), (8,), ((), (0,)), ((0,), (), ())),
        ((), (1,), (), (), ((),)),
        ((0, 4), (4, 0), (), ((), ()), ((), ())),
        ((8, 0), (8, 0, 4), (8,), ((0,), ()), ((0,), (), ())),
        ((8, 2, 0), (1, 8, 0, 4), (8,), ((0,), (), ()), ((), (0,), (), ())),
        ((6, 0), (0, 6), (), ((), ()), ((), ())),
        ((6, 0), (4, 0), (2,), ((0,), ()), ((0,), ())),
    ],
)
def test_common_atoms(
    before: tuple[int, ...],
    after: tuple[int, ...],
    sizes: tuple[int, ...],
    left: DimMap,
    right: DimMap,
) -> None:
    atoms, got_left, got_right, _ = common_atoms(before, after)
    assert atoms == tuple(Loop(size) for size in sizes)
    assert got_left == left
    assert got_right == right
