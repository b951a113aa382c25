"""Pallas kernels: which loops of the grid are found, which are not and why, and that they hold."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu import flash_attention
from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_kernel,
    splash_attention_mask,
)

import meshwise as mw
from meshwise.errors import TraceError
from meshwise.graph.loops import enumerate_strategies
from meshwise.trace.flatten import flatten
from meshwise.trace.to_graph import to_graph
from oracle.every_micro_batch import check_in_time
from oracle.every_strategy import MESHES, runs_of, sampled
from oracle.on_devices import check_on_devices
from oracle.one_device import traced
from rule_cases.case import floats, ints
from rule_cases.pallas import ROWS, gradients, heads, splash

ROW = pl.BlockSpec((1, 8), lambda i: (i, 0))
X = ints(8, 8)


def _call(body: Any, spec: Any = ROW, *, grid: Any = (8,), **options: Any) -> Callable[..., Any]:
    """A kernel from an array of (8, 8) to another one."""
    return pl.pallas_call(
        body,
        grid=grid,
        in_specs=options.pop("in_specs", [spec]),
        out_specs=options.pop("out_spec", spec),
        out_shape=jax.ShapeDtypeStruct((8, 8), jnp.float32),
        interpret=True,
        **options,
    )


def _rule(fun: Any, *operands: Any) -> Any:
    (operator,) = [
        op
        for op in to_graph(flatten(jax.make_jaxpr(fun)(*operands))).operators
        if op.kind == "pallas_call"
    ]
    return operator.rule


def _double(x: Any, out: Any) -> None:
    out[...] = 2 * x[...]


def _running(x: Any, out: Any, total: Any) -> None:
    """Each block adds to what the one before has left."""
    total[...] = total[...] + x[...]
    out[...] = total[...]


def _started(x: Any, out: Any, total: Any) -> None:
    """Only the very first block writes what it reads."""

    @pl.when(pl.program_id(0) == 0)
    def _() -> None:
        total[...] = jnp.zeros_like(total)

    _running(x, out, total)


def _half_started(x: Any, out: Any, total: Any) -> None:
    total[:, :4] = jnp.zeros((1, 4))
    _running(x, out, total)


def _sometimes_started(x: Any, out: Any, total: Any) -> None:
    @pl.when(x[0, 0] > 0)
    def _() -> None:
        total[...] = jnp.zeros_like(total)

    _running(x, out, total)


def _numbered(x: Any, out: Any) -> None:
    out[...] = x[...] + pl.program_id(0)


def _thirds(x: Any, out: Any) -> None:
    out[...] = x[...] * lax.rem(pl.program_id(0), 3).astype(jnp.float32)


def _summed_in_an_operand(x: Any, kept: Any, out: Any) -> None:
    kept[...] += x[...]
    out[...] = kept[...]


SCRATCH = {"scratch_shapes": [pltpu.VMEM((1, 8), jnp.float32)]}
# Kernels whose loop must stay whole, and why.
WHOLE: dict[str, tuple[Callable[..., Any], str]] = {
    "what is carried": (_call(_running, **SCRATCH), "leaves in scratch memory"),
    "what is carried from the first": (_call(_started, **SCRATCH), "reads its program_id"),
    "what is written in part": (_call(_half_started, **SCRATCH), "leaves in scratch memory"),
    "what is written in one branch": (
        _call(_sometimes_started, **SCRATCH),
        "leaves in scratch memory",
    ),
    "the number of a block": (_call(_numbered), "reads its program_id"),
    "a number in groups that do not divide": (_call(_thirds), "in groups of 3"),
    "blocks in another order": (
        _call(_double, pl.BlockSpec((1, 8), lambda i: (7 - i, 0))),
        "blocks do not follow it in their order",
    ),
    "blocks beyond the end": (
        _call(_double, pl.BlockSpec((3, 8), lambda i: (i, 0)), grid=(3,)),
        "its blocks do not fill a dim of size 8",
    ),
    "a diagonal": (
        _call(_double, pl.BlockSpec((1, 1), lambda i: (i, i))),
        "a block follows it together with another loop",
    ),
    "one block for all": (
        _call(_double, out_spec=pl.BlockSpec((1, 8), lambda i: (0, 0))),
        "no block of a result follows it",
    ),
    "elements": (
        _call(_double, pl.BlockSpec((pl.Element(1), pl.Element(8)), lambda i: (i, 0))),
        "its blocks do not fill a dim of size 8",
    ),
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_loop_that_may_not_be_split_is_not_and_says_why(name: str) -> None:
    kernel, why = WHOLE[name]
    rule = _rule(kernel, X)
    assert rule.loops == ()
    assert not rule.ruled
    assert why in rule.whole
    assert "mw.sharded_kernel(loops=" in rule.whole
    # With one more loop around it, which each row of a batch has for itself, that one is split.
    rule = _rule(jax.vmap(kernel), np.stack([X, X]))
    assert [loop.size for loop in rule.loops] == [2]


def _of_all_rows(write: Callable[[Any, Any], None], rows: int) -> Callable[..., Any]:
    """A kernel with a second result, of which each block is told to write something."""

    def body(x: Any, out: Any, found: Any) -> None:
        out[...] = 2 * x[...]
        write(x, found)

    return pl.pallas_call(
        body,
        grid=(8,),
        in_specs=[ROW],
        out_specs=[ROW, pl.BlockSpec((rows, 8), lambda i: (0, 0))],
        out_shape=[jax.ShapeDtypeStruct((n, 8), jnp.float32) for n in (8, rows)],
        interpret=True,
    )


def _last(x: Any, found: Any) -> None:
    found[...] = x[...]


def _last_positive(x: Any, found: Any) -> None:
    @pl.when(x[0, 0] > 0)
    def _() -> None:
        found[...] = x[...]


def _at_its_place(x: Any, found: Any) -> None:
    found[x[0, 0].astype(jnp.int32) % 8] = x[0]


def test_a_result_that_all_turns_write_whole_is_that_of_the_last() -> None:
    (run,) = runs_of(_of_all_rows(_last, 1), (X.astype(np.float32),), "pallas_call")
    assert [loop.size for loop in run.rule.loops] == [8]
    check_on_devices(run, [(0,)], (8,))


@pytest.mark.parametrize(("write", "rows"), [(_last_positive, 1), (_at_its_place, 8)])
def test_a_result_that_turns_write_in_part_keeps_the_loop_whole(write: Any, rows: int) -> None:
    rule = _rule(_of_all_rows(write, rows), X.astype(np.float32))
    assert rule.loops == ()
    assert "a turn leaves in a result what turns before have written" in rule.whole


def test_an_operand_that_is_written_is_scratch_memory() -> None:
    kernel = _call(_summed_in_an_operand, in_specs=[ROW, pl.BlockSpec((1, 8), lambda i: (0, 0))])
    rule = _rule(kernel, X.astype(np.float32), np.zeros((1, 8), np.float32))
    assert rule.loops == ()
    assert "leaves in scratch memory" in rule.whole


def test_what_to_write_shows_what_block_maps_say() -> None:
    rule = _rule(WHOLE["the number of a block"][0], X)
    assert 'mw.sharded_kernel(loops="ab->ac", whole="abc")' in rule.whole


def test_a_kernel_without_loops_is_reported_with_what_to_write() -> None:
    step = mw.parallelize(
        lambda w, x: (w, jnp.sum(WHOLE["the number of a block"][0](x * w))),
        method=mw.IntraOp((8,)),
        cluster=mw.Cluster.virtual("1x dgx-h100"),
        batch_argnums=(1,),
    )
    (warning,) = [w for w in step.plan(np.float32(2), X).warnings if "pallas_call" in w]
    assert "reads its program_id" in warning
    assert "mw.sharded_kernel" in warning


def _product(x: Any, y: Any) -> Any:
    """Blocks of both factors are multiplied and added up in scratch memory."""

    def body(x: Any, y: Any, out: Any, total: Any) -> None:
        @pl.when(pl.program_id(2) == 0)
        def _() -> None:
            total[...] = jnp.zeros_like(total)

        total[...] += x[...] @ y[...]

        @pl.when(pl.program_id(2) == 3)
        def _() -> None:
            out[...] = total[...]

    return pl.pallas_call(
        body,
        grid=(8, 4, 4),
        in_specs=[
            pl.BlockSpec((2, 4), lambda i, j, k: (i, k)),
            pl.BlockSpec((4, 2), lambda i, j, k: (k, j)),
        ],
        out_specs=pl.BlockSpec((2, 2), lambda i, j, k: (i, j)),
        out_shape=jax.ShapeDtypeStruct((16, 8), jnp.float32),
        scratch_shapes=[pltpu.VMEM((2, 2), jnp.float32)],
        interpret=True,
    )(x, y)


def test_scratch_memory_that_is_written_first_lets_loops_be_split() -> None:
    (run,) = runs_of(_product, (ints(16, 16), ints(16, 8)), "pallas_call")
    assert [loop.size for loop in run.rule.loops] == [8, 4]
    assert run.rule.operands == (((0,), ()), ((), (1,)))
    assert run.rule.results == (((0,), (1,)),)
    assert run.row.flop(run.equation) == 2 * 16 * 16 * 8
    for sizes in MESHES:
        check_on_devices(run, sampled(list(enumerate_strategies(run.rule, sizes)), 4), sizes)


def _in_place(x: Any) -> Any:
    return _call(_double, input_output_aliases={0: 0})(x)


def test_an_operand_in_the_memory_of_a_result_is_split_with_it() -> None:
    (run,) = runs_of(_in_place, (X.astype(np.float32),), "pallas_call")
    assert [loop.size for loop in run.rule.loops] == [8]
    check_on_devices(run, [(0,)], (8,))


def test_the_cost_that_a_kernel_states_is_its_flop() -> None:
    cost = pl.CostEstimate(flops=640, transcendentals=8, bytes_accessed=512)
    (run,) = runs_of(_call(_double, cost_estimate=cost), (X,), "pallas_call")
    assert run.row.flop(run.equation) == 640
    check_on_devices(run, [(0,)], (8,))


def test_kernels_are_told_apart_by_what_they_do() -> None:
    def detail(kernel: Any) -> str:
        (operator,) = to_graph(flatten(jax.make_jaxpr(kernel)(X))).operators
        return operator.detail

    def triple(x: Any, out: Any) -> None:
        out[...] = 3 * x[...]

    assert detail(_call(_double)) == detail(_call(_double))
    # The same name, the same blocks.
    triple.__name__ = _double.__name__
    found = {
        detail(_call(body, spec, name="scale"))
        for body in (_double, triple)
        for spec in (ROW, pl.BlockSpec((2, 8), lambda i: (i // 2, 0)))
    }
    assert len(found) == 4


def test_heads_with_masks_of_their_own_stay_whole() -> None:
    """Which blocks are seen then depends on the head: the loop of heads is no clean one."""
    masks = [splash_attention_mask.LocalMask((ROWS, ROWS), (n, 0), 0) for n in (8, 16, 150, 200)]
    with jax.ensure_compile_time_eval():
        kernel = splash_attention_kernel.make_splash_mha(
            splash_attention_mask.MultiHeadMask(masks),
            head_shards=1,
            q_seq_shards=1,
            interpret=True,
        )
    rule = _rule(jax.vmap(kernel), *heads(2, 4, 4, ROWS))
    assert [loop.size for loop in rule.loops] == [2]
    assert "loop 1 of the grid" in rule.whole


def test_one_head_of_keys_splits_queries_and_not_its_gradient() -> None:
    q, k, v = heads(2, 4, 1, ROWS)
    kernel = splash(4, is_mqa=True)
    runs = runs_of(lambda *x: gradients(jax.vmap(kernel), *x), (q, k[:, 0], v[:, 0]), "pallas_call")
    loops = {
        run.equation.params["name"].split("_")[2]: [loop.size for loop in run.rule.loops]
        for run in runs
    }
    assert loops == {"fwd": [2, 4], "dq": [2, 4], "dkv": [2]}
    for run in runs:
        strategies = sampled(list(enumerate_strategies(run.rule, (2, 4))), 3)
        check_on_devices(run, strategies, (2, 4), rtol=2e-5)


@pytest.mark.parametrize("rows", [128, 256])
def test_flash_attention_of_a_tpu(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a bias and segments; of 128 rows it has no scratch memory."""
    monkeypatch.setattr(pl, "pallas_call", partial(pl.pallas_call, interpret=True))
    sizes = flash_attention.BlockSizes(
        **{name: 128 for name in flash_attention.BlockSizes.__dataclass_fields__} | {"block_b": 1}
    )
    ids = jnp.asarray(np.arange(rows) > rows // 3, jnp.int32) * jnp.ones((2, 1), jnp.int32)

    def attention(q: Any, k: Any, v: Any, bias: Any) -> Any:
        return flash_attention._flash_attention(
            q,
            k,
            v,
            bias,
            flash_attention.SegmentIds(ids, ids),
            False,
            True,
            0.5,
            sizes,
            False,
        )

    operands = (*heads(2, 4, 4, rows), floats(2, 4, rows, rows))
    runs = runs_of(partial(gradients, attention), operands, "pallas_call")
    assert len(runs) == 3
    for run in runs:
        assert [loop.size for loop in run.rule.loops][:2] == [2, 4]
        strategies = sampled(list(enumerate_strategies(run.rule, (2, 4))), 3)
        check_on_devices(run, strategies, (2, 4), rtol=2e-5)


def test_a_micro_batch_has_whole_blocks_of_rows() -> None:
    pairs = pl.BlockSpec((2, 8), lambda i: (i, 0))
    rows = floats(16, 8)
    call = pl.pallas_call(
        _double,
        grid=(8,),
        in_specs=[pairs],
        out_specs=pairs,
        out_shape=jax.ShapeDtypeStruct(rows.shape, rows.dtype),
        interpret=True,
    )
    (run,) = runs_of(call, (rows,), "pallas_call")
    assert check_in_time(run) == 1

    def step(state: Any, batch: Any) -> Any:
        return state, jnp.mean(call(batch) @ state)

    # Of 16 rows a micro-batch has two, then one, for each device.
    traced(step, floats(8, 8), rows, b=2, num_devices=4)
    with pytest.raises(TraceError, match=r"\(blocks of 2 rows, where a micro-batch has 1 of the"):
        traced(step, floats(8, 8), rows, b=2, num_devices=8)
