from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core.primitives import threefry2x32_p

from meshwise.graph.loops import Loop, LoopRule
from meshwise.rules.primitive import Equation, Shards
from meshwise.rules.random import flat_words, local_bits
from oracle.every_strategy import MESHES, check_run, runs_of

HUGE = (2**21, 3, 2**20 + 6)
CORNERS = (
    [0, 1, 2**20 + 1, 2**21 - 1],
    [0, 2],
    [0, 2**16 - 1, 2**16, 2**20 + 5],
)


def _flat(shape: tuple[int, ...], indices: tuple[list[int], ...]) -> np.ndarray[Any, Any]:
    """Flat indices in Python integers, which do not overflow."""
    strides = [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
    grid = np.meshgrid(*(np.array(i, object) for i in indices), indexing="ij")
    return sum(g * s for g, s in zip(grid, strides, strict=True))


def test_flat_words_beyond_32_bits() -> None:
    flat = _flat(HUGE, CORNERS)
    assert flat.max() > 2**42
    high, low = flat_words([jnp.array(i, jnp.int32) for i in CORNERS], HUGE)
    assert high is not None
    np.testing.assert_array_equal(high, (flat >> 32).astype(np.uint32))
    np.testing.assert_array_equal(low, (flat & 0xFFFFFFFF).astype(np.uint32))


@pytest.mark.parametrize(("shape", "wide"), [((2**16, 2**16), False), ((2**16, 2**16 + 1), True)])
def test_the_high_word_is_there_where_it_is_needed(shape: tuple[int, ...], wide: bool) -> None:
    last = tuple([size - 1] for size in shape)
    high, low = flat_words([jnp.array(i, jnp.int32) for i in last], shape)
    flat = int(_flat(shape, last).item())
    assert (high is not None) is wide
    assert int(low.item()) == flat % 2**32
    assert (0 if high is None else int(high.item())) == flat >> 32


class Corner(Shards):
    """A device that holds a few far-apart rows of each dim."""

    def __init__(self, rule: LoopRule, indices: tuple[list[int], ...]) -> None:
        self.rule = rule
        self.indices = indices

    def parts(self, loop: int) -> int:
        return self.rule.loops[loop].size // len(self.indices[loop])

    def block_start(self, loop: int) -> int:
        raise AssertionError("not a block")

    def global_index(self, loop: int) -> jax.Array:
        return jnp.array(self.indices[loop], jnp.int32)

    def is_first(self, loop: int) -> bool:
        return False

    def local_shape(self, shape: Any, dims: Any) -> tuple[int, ...]:
        return tuple(len(self.indices[loops[0]]) for loops in dims)


def test_bits_of_an_array_of_more_than_two_to_the_32_elements() -> None:
    key = jax.random.key(9)
    traced = jax.make_jaxpr(lambda k: jax.random.bits(k, HUGE))(key)
    (eqn,) = traced.jaxpr.eqns
    avals = tuple(v.aval for v in eqn.invars), tuple(v.aval for v in eqn.outvars)
    equation = Equation(eqn.primitive, eqn.params, *avals, (None,))
    rule = LoopRule(
        loops=tuple(Loop(size) for size in HUGE),
        operands=((),),
        results=(((0,), (1,), (2,)),),
    )
    (bits,) = local_bits(equation, Corner(rule, CORNERS), [key])
    flat = _flat(HUGE, CORNERS)
    first, second = jax.random.key_data(key)
    words = [jnp.asarray(w.astype(np.uint32)) for w in (flat >> 32, flat & 0xFFFFFFFF)]
    spread = [jnp.full(flat.shape, word) for word in (first, second)]
    one, two = threefry2x32_p.bind(*spread, *words)
    np.testing.assert_array_equal(bits, one ^ two)


@pytest.mark.parametrize("dtype", [jnp.uint8, jnp.uint32])
def test_old_threefry_is_drawn_whole_and_says_so(dtype: Any) -> None:
    key = jax.random.key(3)
    with jax.threefry_partitionable(False):
        (run,) = runs_of(lambda k: jax.random.bits(k, (8, 4), dtype), [key], "random_bits")
        assert "jax_threefry_partitionable" in run.rule.whole
        assert run.rule.ruled
        assert [loop.size for loop in run.rule.loops] == [8, 4]
        for sizes in MESHES:
            assert check_run(run, sizes, limit=32) > 1


def test_other_generators_are_drawn_whole_and_say_so() -> None:
    key = jax.random.key(3, impl="rbg")
    (run,) = runs_of(lambda k: jax.random.bits(k, (8, 4)), [key], "random_bits")
    assert "key<rbg>" in run.rule.whole
    assert run.rule.ruled


def test_partitionable_threefry_is_not_whole() -> None:
    (run,) = runs_of(lambda k: jax.random.bits(k, (8, 4)), [jax.random.key(3)], "random_bits")
    assert run.rule.whole == ""
