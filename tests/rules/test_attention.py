"""Attention whose keys go round: every ring of every case, and the same in micro-batches."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from doubles.few import few
from meshwise.graph.loops import NONE, enumerate_strategies
from meshwise.graph.sends import ring_axes, ring_share
from meshwise.memory.scratch import scratch_bytes
from meshwise.rules.attention.operators import attend
from meshwise.rules.attention.scores import KEY, ROW, Positions, Scores
from meshwise.rules.primitive import Equation
from meshwise.rules.table import primitive_rule
from meshwise.runtime.hlo.flop import hlo_dense_flop
from meshwise.spmd.shards import SpaceShards
from meshwise.trace.flatten import flatten
from meshwise.trace.to_graph import to_graph
from oracle.every_micro_batch import check_in_time
from oracle.every_strategy import runs_of
from oracle.on_devices import check_on_devices
from rule_cases.attention import CASES, both_of, capped
from rule_cases.case import Case

# A mesh of three axes has rings of one, two and all of them, in parts and with gathered keys.
_MESHES = (((8,), (2, 2, 2)), ((2, 4),))


@pytest.mark.parametrize("meshes", few(_MESHES, _MESHES[:1]), ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_keys_that_go_round_give_what_one_device_gives(
    case: Case, meshes: tuple[tuple[int, ...], ...]
) -> None:
    (run,) = runs_of(case.fun, case.operands, case.primitive)
    count = 0
    for sizes in meshes:
        rings = [s for s in enumerate_strategies(run.rule, sizes) if ring_axes(run.rule, s, sizes)]
        if rings:
            check_on_devices(run, rings[:: max(1, len(rings) // 4)], sizes, rtol=case.rtol)
        count += len(rings)
    assert count


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rows_of_the_batch_are_cut_in_time(case: Case) -> None:
    for run in runs_of(case.fun, case.operands, case.primitive):
        check_in_time(run, rtol=case.rtol)


def _compiled(equation: Equation, num_devices: int) -> Any:
    """The compiled program of an equation whose keys go round so many devices."""
    rule, sizes, names = primitive_rule(equation).rule(equation), (num_devices,), ("x",)
    assert rule.ring is not None
    shards = SpaceShards(rule, (rule.ring.loop,), sizes, names)

    def specs(dims_of_all: tuple[tuple[tuple[int, ...], ...], ...]) -> list[PartitionSpec]:
        return [
            PartitionSpec(*("x" if rule.ring and rule.ring.loop in dim else None for dim in dims))
            for dims in dims_of_all
        ]

    mapped = jax.shard_map(
        lambda *tiles: primitive_rule(equation).local(equation, shards, tiles),
        mesh=Mesh(np.array(jax.devices()[:num_devices]), names),
        in_specs=tuple(specs(rule.operands)),
        out_specs=specs(rule.results),
        check_vma=False,
    )
    operands = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in equation.in_avals]
    return jax.jit(mapped).lower(*operands).compile()


def _temporaries(compiled: Any) -> int:
    analysis = compiled.memory_analysis()
    assert analysis is not None
    return analysis.temp_size_in_bytes


@pytest.mark.parametrize("causal", [False, True], ids=["no mask", "causal"])
@pytest.mark.parametrize("number", [0, 1], ids=["forward", "backward"])
def test_what_a_device_holds_falls_at_least_as_one_over_n(number: int, causal: bool) -> None:
    """A block has 512 rows of 4,096 with eight devices; scores with all keys are never there."""
    fun, shapes = both_of(batch=(2,), rows=4096, keys=4096, features=16, causal=causal)[number]
    program = flatten(jax.make_jaxpr(fun)(*shapes))
    graph = to_graph(program)
    operator, equation = graph.operators[-1], program.nodes[-1].equation
    assert operator.rule.ring is not None
    strategy = (operator.rule.ring.loop,)
    whole = 0
    for count in (2, 4, 8):
        found = _temporaries(_compiled(equation, count))
        # In the backward pass XLA:GPU holds one value for each score more than XLA:CPU.
        most = 1.4 if number else 1.25
        assert 0.9 < scratch_bytes(operator, strategy, (count,), graph.tensors) / found < most
        whole = whole or found * count
        assert found * count <= 1.05 * whole


def _dense(queries: Any, keys: Any, values: Any) -> Any:
    """Causal attention of grouped heads, with all scores."""
    rows, places = queries.shape[-2], np.arange(keys.shape[-2])
    scores = jnp.tanh(jnp.einsum("bgrf,bkf->bgrk", queries, keys))
    scores = jnp.where(places[:rows, None] >= places[None, :], scores, -1e30)
    return jnp.einsum("bgrk,bkf->bgrf", jax.nn.softmax(scores), values)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("num_rows", "chunk"),
    [(24, 8), (24, 5), (24, 24), (24, 1), (20, 1), (23, 4)],
    ids=[
        "3 blocks",
        "6 blocks",
        "one block",
        "12 blocks of two chunks",
        "10 blocks of two chunks",
        "a prime number",
    ],
)
def test_hidden_scores_are_left_out_on_one_device(num_rows: int, chunk: int) -> None:
    """The result, and the gradients through `jax.grad`, are those of all scores."""
    attention = capped(chunk)
    rng = np.random.default_rng(0)
    operands = [
        jnp.asarray(rng.normal(size=shape))
        for shape in ((2, 3, num_rows, 4), (2, num_rows, 4), (2, num_rows, 5))
    ]
    across = jnp.asarray(rng.normal(size=(2, 3, num_rows, 5)))
    found, back = jax.vjp(lambda *x: attend(attention, *x, []), *operands)
    wanted, wanted_back = jax.vjp(_dense, *operands)
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)
    for one, other in zip(back(across), wanted_back(across), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("dtype", ["int32", "bfloat16", "float16", "uint8"])
@pytest.mark.parametrize("dim", [ROW, KEY])
def test_positions_of_a_block_are_those_of_the_whole(dim: int, dtype: str) -> None:
    scores = Scores((Positions(dim, dtype),))
    whole = jax.lax.iota(jnp.dtype(dtype), 3000)
    block = scores.of(jnp.zeros((700, 1) if dim == ROW else (1, 700)), (), 2051, 2051)
    assert block.dtype == dtype
    np.testing.assert_array_equal(block.ravel(), whole[2051:2751])


@pytest.mark.parametrize("number", [0, 1], ids=["forward", "backward"])
def test_what_one_device_computes_and_holds_under_a_causal_mask(number: int) -> None:
    """It computes 10 of 16 pairs of blocks, and holds the scores of one pair."""
    fun, shapes = both_of(batch=(2,), group=(2,), rows=4096, keys=4096, features=16, causal=True)[
        number
    ]
    graph = to_graph(flatten(jax.make_jaxpr(fun)(*shapes)))
    operator = graph.operators[-1]
    compiled = jax.jit(fun).lower(*shapes).compile()
    flop = operator.flop * ring_share(operator.rule, (NONE,), (1,))
    assert flop == operator.flop * 10 / 16
    assert hlo_dense_flop(compiled.as_text()) == pytest.approx(flop, rel=0.01)
    planned = scratch_bytes(operator, (NONE,), (1,), graph.tensors)
    assert planned == pytest.approx(_temporaries(compiled), rel=0.1)


@pytest.mark.parametrize("number", [0, 1], ids=["forward", "backward"])
@pytest.mark.parametrize("count", [2, 4])
def test_a_ring_computes_its_share_of_halves_and_of_its_own_blocks(count: int, number: int) -> None:
    """Halves of 128 rows, or 64, lie in blocks of 32."""
    fun, shapes = both_of(batch=(2,), rows=512, keys=512, features=16, causal=True, chunk=32)[
        number
    ]
    program = flatten(jax.make_jaxpr(fun)(*shapes))
    operator, equation = to_graph(program).operators[-1], program.nodes[-1].equation
    assert operator.rule.ring is not None
    strategy = (operator.rule.ring.loop,)
    share = ring_share(operator.rule, strategy, (count,))
    assert share == 17 / 32
    found = hlo_dense_flop(_compiled(equation, count).as_text())
    assert found == pytest.approx(operator.flop * share / count, rel=0.01)
