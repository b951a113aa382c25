"""Every loop of an equation cut into micro-batches, whose rows are interleaved.

The rows of a micro-batch are written down here once more, from the meaning: the batch in G equal
parts, each part cut into B runs; micro-batch t has run t of every part.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshwise.graph.loops import is_feasible, operand_layouts, result_layouts
from meshwise.trace.time.shards import TimeShards
from meshwise.trace.time.state import Batch
from oracle.every_strategy import COMBINE, Run, assert_equal, is_key, raw

_PARTS, _MICROBATCHES = 2, 2


def rows_of(size: int, index: int) -> np.ndarray[Any, Any]:
    """Positions along a split dim that belong to one micro-batch."""
    return np.arange(size).reshape(_PARTS, _MICROBATCHES, -1)[:, index].reshape(-1)


def check_in_time(run: Run, *, rtol: float = 0.0) -> int:
    """Check every loop that may be cut; how many there were."""
    sizes = (_MICROBATCHES,)
    choices = [
        loop
        for loop, info in enumerate(run.rule.loops)
        if not info.block
        and info.size % (_PARTS * _MICROBATCHES) == 0
        and is_feasible(run.rule, (loop,), sizes)
    ]
    keys = [is_key(value) for value in run.operands]
    impls = [jax.random.key_impl(v) if k else None for v, k in zip(run.operands, keys, strict=True)]

    def tiles(choice: int, index: int) -> list[Any]:
        layouts = operand_layouts(run.rule, (choice,), sizes)
        assert layouts is not None
        local = [raw(value) for value in run.operands]
        for i, layout in enumerate(layouts):
            for dim, axes in enumerate(layout.dims):
                if axes:
                    local[i] = np.take(local[i], rows_of(local[i].shape[dim], index), axis=dim)
        return local

    def everything(inputs: list[list[list[Any]]]) -> list[list[list[Any]]]:
        out = []
        for choice, of_choice in zip(choices, inputs, strict=True):
            batch = Batch(run.rule.loops[choice].size, _MICROBATCHES, _PARTS)
            terms = []
            for index, local in enumerate(of_choice):
                shards = TimeShards(run.rule, choice, batch, jnp.int32(index))
                operands = [
                    jax.random.wrap_key_data(v, impl=impl) if key else v
                    for v, key, impl in zip(local, keys, impls, strict=True)
                ]
                found = run.row.local(run.equation, shards, operands)
                terms.append([jax.random.key_data(v) if is_key(v) else v for v in found])
            out.append(terms)
        return out

    inputs = [[tiles(choice, index) for index in range(_MICROBATCHES)] for choice in choices]
    outputs = jax.jit(everything)(inputs)
    for choice, terms in zip(choices, outputs, strict=True):
        layouts = result_layouts(run.rule, (choice,), sizes)
        assert layouts is not None
        for k, layout in enumerate(layouts):
            whole = raw(run.results[k])
            got = np.zeros(whole.shape, terms[0][k].dtype)
            for index in range(_MICROBATCHES):
                term = np.asarray(terms[index][k])
                if layout.partial:
                    got = COMBINE[layout.monoid](got, term) if index else term
                else:
                    # A result that does not follow the loop is the same each time.
                    where = tuple(
                        rows_of(size, index) if axes else slice(None)
                        for size, axes in zip(whole.shape, layout.dims, strict=False)
                    )
                    got[where] = term
            assert_equal(
                got, whole, rtol, f"{run.equation.name}, loop {choice} in time, result {k}"
            )
    return len(choices)
