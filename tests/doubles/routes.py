"""Routes of tiles carried out with NumPy, and random layouts on random hosts."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import strategies as st

from meshwise.graph.layout import Layout
from meshwise.resharding.tiles import boxes


def part(whole, box):
    return whole[tuple(slice(start, stop) for start, stop in box)]


def carried_out(route, whole, source):
    """Return what each device of the destination has in the end."""
    values = {n: part(whole, source[device]) for device, n in route.held.items()}
    for phase in route.phases:
        for cut in phase.cuts:
            for place, n in zip(cut.parts, cut.results, strict=True):
                values[n] = part(values[cut.value], place)
        arrived = {move.result: values[move.value] for move in phase.moves}
        values |= arrived
        for join in phase.joins:
            made = np.full([max(p[d][1] for p in join.places) for d in range(whole.ndim)], -1)
            for n, place in zip(join.values, join.places, strict=True):
                assert (part(made, place) == -1).all(), "an element comes twice"
                part(made, place)[...] = values[n]
            values[join.result] = made
    return {device: values[n] for device, n in route.shards.items()}


def elements_between(route, hosts):
    """Return the elements that pass from each host to each other one."""
    found: dict[tuple[int, int], int] = {}
    for move in (m for phase in route.phases for m in phase.moves):
        way = hosts[move.source], hosts[move.destination]
        if way[0] != way[1]:
            found[way] = found.get(way, 0) + int(np.prod(move.shape))
    return found


def layouts(rank, sizes):
    """Return every layout without partial axes, in every order of axes."""
    for homes in itertools.product(range(-1, rank), repeat=len(sizes)):
        dims = [[a for a, home in enumerate(homes) if home == d] for d in range(rank)]
        for orders in itertools.product(*(itertools.permutations(axes) for axes in dims)):
            yield Layout(tuple(orders))


@st.composite
def placements(draw):
    """Draw a shape, what devices hold and need, and their hosts; meshes may overlap."""
    shape = draw(st.lists(st.integers(1, 13), min_size=0, max_size=3).map(tuple))
    sides = []
    first = 0
    for _ in range(2):
        sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=2).map(tuple))
        layout = draw(st.sampled_from(list(layouts(len(shape), sizes))))
        sides.append(dict(enumerate(boxes(shape, layout, sizes), first)))
        first = draw(st.integers(0, len(sides[0])))
    count = max(map(max, sides)) + 1
    per_host = draw(st.integers(1, 5))
    hosts = draw(
        st.sampled_from(
            [[d // per_host for d in range(count)], [d % max(1, count // 3) for d in range(count)]]
        )
    )
    return shape, *sides, hosts
