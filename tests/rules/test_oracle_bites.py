"""Mistakes that a rule or a local form could make, and that the oracle must find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from meshwise.graph.loops import Loop
from meshwise.rules.primitive import local_rebind, rebind
from oracle.every_micro_batch import check_in_time
from oracle.every_strategy import Run, check_run, runs_of

TABLE = np.arange(32, dtype=np.float32).reshape(8, 4)
IDS = np.array([0, 7, 11, -12, 3, 3, 5, 2], np.int32)


def _run(primitive: str, fun: Callable[..., Any], *operands: Any) -> Run:
    (run,) = runs_of(fun, operands, primitive)
    return run


def _with(run: Run, **changes: Any) -> Run:
    return replace(run, row=replace(run.row, **changes))


def base_everywhere() -> Run:
    """A scatter-add whose base counts on every part of the updates."""
    run = _run("scatter-add", lambda x, i: x.at[i].add(x), TABLE + 1, IDS)
    return _with(run, local=lambda eqn, shards, ops: rebind(eqn, ops))


def forgotten_offset() -> Run:
    """An iota that starts at 0 in every block."""
    run = _run("iota", lambda: lax.iota(jnp.int32, 8))
    return _with(
        run, local=lambda eqn, shards, ops: rebind(eqn, ops, shape=shards.result_shape(eqn))
    )


def repeated_mask() -> Run:
    """Random bits drawn by local position."""
    run = _run("random_bits", lambda k: jax.random.bits(k, (8,)), jax.random.key(0))
    return _with(
        run, local=lambda eqn, shards, ops: rebind(eqn, ops, shape=shards.result_shape(eqn))
    )


def passing_through_max() -> Run:
    """A partial sum through a non-linear primitive."""
    run = _run("max", lax.max, TABLE, -TABLE)
    return replace(run, rule=replace(run.rule, linear=((0, 1),)))


def parallel_contraction() -> Run:
    """A contracted dim taken as parallel: every device has a term and calls it the value."""
    run = _run("dot_general", jnp.matmul, TABLE, TABLE.T)
    loops = tuple(Loop(loop.size) for loop in run.rule.loops)
    return replace(run, rule=replace(run.rule, loops=loops))


def swapped_dims() -> Run:
    """A transpose that forgot to permute."""
    run = _run("transpose", jnp.transpose, np.arange(64, dtype=np.float32).reshape(8, 8))
    return replace(run, rule=replace(run.rule, results=run.rule.operands))


MISTAKES = (
    base_everywhere,
    forgotten_offset,
    parallel_contraction,
    passing_through_max,
    repeated_mask,
    swapped_dims,
)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found_in_space(mistake: Callable[[], Run]) -> None:
    with pytest.raises(AssertionError):
        check_run(mistake(), (2, 4), limit=1000)


@pytest.mark.parametrize("mistake", [base_everywhere, forgotten_offset, repeated_mask])
def test_a_mistake_is_found_in_time(mistake: Callable[[], Run]) -> None:
    with pytest.raises(AssertionError):
        check_in_time(mistake())


def test_a_lookup_filled_on_every_device_is_found() -> None:
    run = _run("gather", lambda x, i: x.at[i].get(mode="fill", fill_value=5), TABLE, IDS)
    check_run(run, (8,), limit=1000)
    with pytest.raises(AssertionError):
        check_run(_with(run, local=local_rebind), (8,), limit=1000)
