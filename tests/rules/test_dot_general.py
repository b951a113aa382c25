from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from oracle.every_strategy import MESHES, check_run, runs_of

SIZES = st.lists(st.sampled_from([1, 2, 3, 4, 8]), max_size=2)


@st.composite
def products(draw: st.DrawFn) -> tuple[Any, tuple[int, ...], tuple[int, ...], float]:
    """Dimension numbers with all kinds of dims in any order, both shapes, the FLOP."""
    batch, left, right, contract = (draw(SIZES) for _ in range(4))
    lhs = [("b", i, s) for i, s in enumerate(batch)] + [("c", i, s) for i, s in enumerate(contract)]
    lhs = draw(st.permutations([*lhs, *(("l", i, s) for i, s in enumerate(left))]))
    rhs = [("b", i, s) for i, s in enumerate(batch)] + [("c", i, s) for i, s in enumerate(contract)]
    rhs = draw(st.permutations([*rhs, *(("r", i, s) for i, s in enumerate(right))]))

    def places(dims: list[Any], kind: str, count: int) -> tuple[int, ...]:
        at = {(k, i): place for place, (k, i, _) in enumerate(dims)}
        return tuple(at[kind, i] for i in range(count))

    numbers = (
        (places(lhs, "c", len(contract)), places(rhs, "c", len(contract))),
        (places(lhs, "b", len(batch)), places(rhs, "b", len(batch))),
    )
    flop = 2.0 * math.prod((*batch, *left, *right, *contract))
    return numbers, tuple(s for *_, s in lhs), tuple(s for *_, s in rhs), flop


@given(products(), st.sampled_from(MESHES))
@settings(max_examples=12, deadline=None)
def test_products_under_every_strategy(
    product: tuple[Any, tuple[int, ...], tuple[int, ...], float], sizes: tuple[int, ...]
) -> None:
    numbers, left, right, flop = product
    rng = np.random.default_rng(0)
    operands = [rng.integers(-3, 4, shape).astype(np.float32) for shape in (left, right)]
    (run,) = runs_of(lambda x, y: lax.dot_general(x, y, numbers), operands, "dot_general")
    assert run.row.flop(run.equation) == flop
    assert run.row.heavy
    assert check_run(run, sizes, limit=24) >= 1
