"""Which choices stay, against the definition."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwise.assignment.reductions.dominance import add_dearest, not_beaten


@st.composite
def neighbourhoods(draw: st.DrawFn) -> tuple[np.ndarray, list[np.ndarray]]:
    """Costs of a node's choices, and those with each of its neighbours."""
    count = draw(st.integers(1, 5))
    values = st.one_of(st.integers(0, 3).map(float), st.just(np.inf))
    cost = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    matrices = []
    for _ in range(draw(st.integers(0, 2))):
        others = draw(st.integers(1, 3))
        cells = draw(st.lists(values, min_size=count * others, max_size=count * others))
        matrices.append(np.array(cells).reshape(count, others))
    return np.array(cost, np.float64), matrices


def situations(cost: np.ndarray, matrices: list[np.ndarray]) -> np.ndarray:
    """Cost of each choice with each combination of the neighbours' choices."""
    total = cost.reshape(-1, 1)
    for matrix in matrices:
        total = (total[:, :, None] + matrix[:, None, :]).reshape(len(cost), -1)
    return total


@settings(max_examples=300, deadline=None)
@given(neighbourhoods())
def test_what_stays_is_as_good_in_every_situation(
    problem: tuple[np.ndarray, list[np.ndarray]],
) -> None:
    cost, matrices = problem
    worst = cost[:, None] - cost[None, :]
    for matrix in matrices:
        add_dearest(worst, matrix)
    stays = not_beaten(worst)
    total = situations(cost, matrices)
    assert stays.any()
    assert (total[stays].min(axis=0) == total.min(axis=0)).all()
    # Of those that stay none is dearer than another everywhere.
    for j in np.flatnonzero(stays):
        for i in np.flatnonzero(stays):
            assert i == j or not (total[i] < total[j]).all()
