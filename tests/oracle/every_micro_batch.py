"""Every loop of an equation cut into micro-batches, whose rows are interleaved.

The rows of a micro-batch are written down here once more, from the meaning: the batch in G equal
parts, each part cut into B runs; micro-batch t has run t of every part.  In a dim that follows
several loops this goes for every place of the loops that are major to the batch.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshwise.graph.loops import PARALLEL, DimMap
from meshwise.trace.time.shards import TimeShards
from meshwise.trace.time.state import Batch
from oracle.every_strategy import COMBINE, Run, assert_equal, compiler_options, is_key, raw

_PARTS, _MICROBATCHES = 2, 2


def rows_of(size: int, index: int, major: int = 1) -> np.ndarray[Any, Any]:
    """Positions along a split dim that belong to one micro-batch."""
    places = np.arange(size).reshape(major, _PARTS, _MICROBATCHES, -1)
    return places[:, :, index].reshape(-1)


def _cut_dims(run: Run, choice: int, dims: DimMap) -> dict[int, int]:
    """Dims that follow a loop, with the number of places of the loops that are major to it."""
    return {
        dim: math.prod(run.rule.loops[loop].size for loop in loops[: loops.index(choice)])
        for dim, loops in enumerate(dims)
        if choice in loops
    }


def check_in_time(run: Run, *, rtol: float = 0.0) -> int:
    """Check every loop that may be cut; how many there were."""
    choices = [
        loop
        for loop, info in enumerate(run.rule.loops)
        if not info.block and info.size % (_PARTS * _MICROBATCHES) == 0
    ]
    keys = [is_key(value) for value in run.operands]
    impls = [jax.random.key_impl(v) if k else None for v, k in zip(run.operands, keys, strict=True)]

    def tiles(choice: int, index: int) -> list[Any]:
        local = [raw(value) for value in run.operands]
        for i, dims in enumerate(run.rule.operands):
            for dim, major in _cut_dims(run, choice, dims).items():
                rows = rows_of(local[i].shape[dim], index, major)
                local[i] = np.take(local[i], rows, axis=dim)
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
    quick = compiler_options(run.equation.name)
    outputs = jax.jit(everything, compiler_options=quick)(inputs)
    for choice, terms in zip(choices, outputs, strict=True):
        kind = run.rule.loops[choice].kind
        for k, dims in enumerate(run.rule.results):
            cut = _cut_dims(run, choice, dims)
            whole = raw(run.results[k])
            got = np.zeros(whole.shape, terms[0][k].dtype)
            for index in range(_MICROBATCHES):
                term = np.asarray(terms[index][k])
                if kind != PARALLEL:
                    got = COMBINE[kind](got, term) if index else term
                else:
                    # A result that does not follow the loop is the same each time.
                    where = tuple(
                        rows_of(size, index, cut[dim]) if dim in cut else slice(None)
                        for dim, size in enumerate(whole.shape)
                    )
                    got[where] = term
            assert_equal(
                got, whole, rtol, f"{run.equation.name}, loop {choice} in time, result {k}"
            )
    return len(choices)
