"""Attention whose keys go round: every ring of every case, and the same in micro-batches."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from doubles.few import few
from meshwise.graph.loops import enumerate_strategies
from meshwise.graph.sends import ring_axes
from meshwise.memory.scratch import scratch_bytes
from meshwise.rules.primitive import Equation
from meshwise.rules.table import primitive_rule
from meshwise.spmd.shards import SpaceShards
from meshwise.trace.flatten import flatten
from meshwise.trace.to_graph import to_graph
from oracle.every_micro_batch import check_in_time
from oracle.every_strategy import runs_of
from oracle.on_devices import check_on_devices
from rule_cases.attention import CASES, both_of
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


def _temporaries(equation: Equation, num_devices: int) -> int:
    """Bytes of temporaries of an equation whose keys go round so many devices, as compiled."""
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
    analysis = jax.jit(mapped).lower(*operands).compile().memory_analysis()
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
        found = _temporaries(equation, count)
        assert 0.9 < scratch_bytes(operator, strategy, (count,), graph.tensors) / found < 1.25
        whole = whole or found * count
        assert found * count <= 1.05 * whole
