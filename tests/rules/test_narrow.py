"""Rules of numbers of four and eight bits: no sums of parts."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

from meshwise.graph.layout import SUM
from meshwise.graph.loops import Loop, LoopRule
from meshwise.rules.narrow import is_narrow, without_sums


@pytest.mark.parametrize("dtype", ["int4", "uint2", "float4_e2m1fn", "float8_e5m2"])
def test_narrow(dtype: str) -> None:
    assert is_narrow(jnp.dtype(dtype))


@pytest.mark.parametrize("dtype", ["int8", "bool", "bfloat16", "float16", "complex64"])
def test_wide(dtype: str) -> None:
    assert not is_narrow(jnp.dtype(dtype))


def test_a_product_keeps_its_parallel_loops() -> None:
    rule = LoopRule(
        loops=(Loop(8, SUM), Loop(4), Loop(2)),
        operands=(((1,), (0,)), ((0,), (2,))),
        results=(((1,), (2,)),),
        linear=((0,), (1,)),
    )
    found = without_sums(rule, "why")
    assert found.loops == (Loop(4), Loop(2))
    assert found.operands == (((0,), ()), ((), (1,)))
    assert found.results == (((0,), (1,)),)
    assert not found.linear
    assert found.whole == "why"


def test_a_dim_of_which_a_part_is_summed_over_stays_whole() -> None:
    rule = LoopRule(
        loops=(Loop(2), Loop(4, SUM), Loop(3)),
        operands=(((0, 1), (2,)),),
        results=(((0,), (2,)),),
    )
    found = without_sums(rule, "why")
    assert found.loops == (Loop(3),)
    assert found.operands == (((), (0,)),)
    assert found.results == (((), (0,)),)


def test_nothing_summed_stays_as_it_is() -> None:
    rule = LoopRule(loops=(Loop(4),), operands=(((0,),),), results=(((0,),),), linear=((0,),))
    assert without_sums(rule, "why") == LoopRule(rule.loops, rule.operands, rule.results)
