"""What the devices of a mesh hold of a tensor, computed from its layout alone."""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np

from meshwise.graph.layout import Layout, is_valid

REDUCE = {
    "sum": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.logical_and,
    "or": np.logical_or,
}


def all_layouts(shape, sizes, monoids=("sum",)):
    """Every valid layout, all orders of axes and all partials included."""
    for homes in itertools.product(range(-2, len(shape)), repeat=len(sizes)):
        partial = tuple(a for a, home in enumerate(homes) if home == -2)
        dims = [[a for a, home in enumerate(homes) if home == d] for d in range(len(shape))]
        for orders in itertools.product(*(itertools.permutations(axes) for axes in dims)):
            for monoid in monoids if partial else ("",):
                layout = Layout(tuple(orders), partial, monoid)
                if is_valid(layout, shape, sizes):
                    yield layout


def coordinates(sizes):
    """Places of all devices."""
    return list(itertools.product(*(range(n) for n in sizes)))


def tile(whole, layout, sizes, at):
    """What the device at `at` holds of a tensor whose split follows `layout`."""
    for dim, axes in enumerate(layout.dims):
        index = 0
        for a in axes:
            index = index * sizes[a] + at[a]
        size = whole.shape[dim] // math.prod(sizes[a] for a in axes)
        whole = np.take(whole, range(index * size, (index + 1) * size), axis=dim)
    return whole


def group_of(at, axes, sizes):
    """Members of the group of a device, the given axes major to minor."""
    members = []
    for ranks in itertools.product(*(range(sizes[a]) for a in axes)):
        member = list(at)
        for a, rank in zip(axes, ranks, strict=True):
            member[a] = rank
        members.append(tuple(member))
    return members


def spread(whole, layout, sizes, rng):
    """Values of all devices; partial sums are random terms that add up to the tile.

    Devices that differ only along axes on which the tensor is replicated hold the same.
    """
    used = {*itertools.chain.from_iterable(layout.dims), *layout.partial}
    values = {}
    for at in coordinates(sizes):
        if any(x and a not in used for a, x in enumerate(at)):
            continue
        values[at] = tile(whole, layout, sizes, at)
        first = tuple(0 if a in layout.partial else x for a, x in enumerate(at))
        if at != first:
            values[at] = rng.integers(-9, 10, values[at].shape)
            values[first] = values[first] - values[at]
    twin = {at: tuple(x if a in used else 0 for a, x in enumerate(at)) for at in coordinates(sizes)}
    return {at: values[twin[at]] for at in coordinates(sizes)}


def assert_is(values, whole, layout, sizes):
    """The values of all devices are the tensor in a layout, replicas equal."""
    used = {*itertools.chain.from_iterable(layout.dims), *layout.partial}
    idle = [a for a in range(len(sizes)) if a not in used]
    for at, value in values.items():
        terms = [values[member] for member in group_of(at, layout.partial, sizes)]
        combine = REDUCE[layout.monoid or "sum"]
        assert np.array_equal(functools.reduce(combine, terms), tile(whole, layout, sizes, at))
        for other in group_of(at, idle, sizes):
            assert np.array_equal(values[other], value), "replicas differ"
