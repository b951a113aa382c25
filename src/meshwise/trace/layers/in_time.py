"""A piece micro-batch by micro-batch: what runs before its loop, inside and after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import jax.numpy as jnp
from jax import Array, lax

from meshwise.errors import TraceError
from meshwise.jax_compat.jaxprs import Var
from meshwise.jax_compat.source_lines import source_line, source_scope
from meshwise.trace.layers.crossing import analyzed
from meshwise.trace.layers.cut import Cutter
from meshwise.trace.layers.equations import variables
from meshwise.trace.layers.joint import Joint
from meshwise.trace.program import Program
from meshwise.trace.time.emit import (
    accumulated,
    after_loop,
    before_loop,
    empty_sums,
    inside_loop,
    loop_source,
    made_inside,
)
from meshwise.trace.time.state import (
    BEFORE_LOOP,
    INSIDE_LOOP,
    LOCAL,
    SPLIT,
    WHOLE,
    Batch,
    BlockTime,
    L,
    R,
    TimeState,
    split,
)


def in_microbatches(
    cutter: Cutter, joint: Joint, batch: Batch, *, local_statistics: bool
) -> BlockTime:
    """Return how a differentiated piece runs micro-batch by micro-batch.

    Args:
        cutter: Cuts the step.
        joint: The piece.
        batch: How the batch is cut.
        local_statistics: Let what does not separate become a statistic of each micro-batch.

    Raises:
        TraceError: it does not.
    """
    piece = joint.piece
    for n, v in enumerate(joint.crossing, start=joint.first_crossing):
        if n not in joint.batch_dims and v not in joint.joined:
            raise _no_cut(cutter, v, "what crosses it are not the rows of a micro-batch")
    for v in variables(cutter.split.forward.jaxpr.outvars[: 1 + cutter.split.num_aux]):
        if v in joint.rows and joint.rows[v].parts > 1:
            raise TraceError(
                f"{_made(cutter, v)} leaves the loss with several runs of rows one behind the "
                "other, which a step in stages cannot return; return each run (jnp.split)"
            )
    block = analyzed(
        joint.program, joint.batch_dims, joint.crossed, batch, local_statistics=local_statistics
    )
    rows = _rows(joint)
    nodes = zip(joint.program.nodes, block.nodes, strict=True)
    inside = {i for node, d in nodes if d.region == INSIDE_LOOP for i in node.outputs}
    results = zip((*piece.leaving, *joint.inward), block.outputs, strict=False)
    for n, (v, state) in enumerate(results):
        is_cotangent = n >= len(piece.leaving)
        if v not in joint.joined:
            if is_cotangent and state not in (R, L, rows[v]):
                raise _no_cut(cutter, v, "its gradient joins the rows of all micro-batches")
            continue
        is_early = state.kind == WHOLE and joint.program.outputs[n] not in inside
        if local_statistics and state.kind not in (LOCAL, WHOLE):
            raise _no_cut(cutter, v, "what crosses it is not there for each micro-batch alone")
        if is_cotangent and not local_statistics and not is_early:
            raise _no_cut(
                cutter, v, "what crosses it joins all micro-batches, and the loss bends it"
            )
    return block


def read_before(joint: Joint, block: BlockTime) -> tuple[int, ...]:
    """Positions of the step's arguments of which all rows are needed before the first micro-batch.

    A mean over the tokens that are no padding divides by their number in the whole batch.
    """
    program = joint.program
    early = {
        i
        for node, decision in zip(program.nodes, block.nodes, strict=True)
        if decision.region == BEFORE_LOOP
        for i in node.inputs
    }
    given = zip(program.inputs, joint.piece.arguments, strict=False)
    return tuple(i for n, (t, i) in enumerate(given) if n in joint.batch_dims and t in early)


# Sums so far, what each micro-batch passes on, rows of all of them.
_Carry: TypeAlias = tuple[list[Array], list[Array], list[Array]]


def run_in_time(
    joint: Joint,
    block: BlockTime,
    batch: Batch,
    inputs: Sequence[Array],
    full: Mapping[int, Array],
    collected: Sequence[Var],
) -> list[Array]:
    """Results of a piece after all micro-batches: sums, what the last one passes on, all rows.

    Args:
        joint: The piece.
        block: Its micro-batches.
        batch: How the batch is cut.
        inputs: The inputs of its program; rows of one micro-batch.
        full: By position the rows of all micro-batches, where they are needed.
        collected: Variables that leave micro-batch by micro-batch, of which all rows or the mean
            are wanted too.
    """
    program = joint.program
    whole = before_loop(program, block, [full.get(n, value) for n, value in enumerate(inputs)])
    rows = {program.inputs[n]: inputs[n] for n in (*joint.batch_dims, *joint.crossed.local)}
    passing = _passing(joint, block)
    sums, _, equal = made_inside(program, block)
    latest = [(program.outputs[j], state) for j, state in passing.items()]
    latest += [(i, block.states[i]) for i in equal]
    places = dict(zip(joint.piece.leaving, program.outputs, strict=False))
    wanted = [(places[v], joint.rows[v]) for v in collected if v in joint.rows]

    def step(carry: _Carry, index: Array) -> tuple[_Carry, None]:
        value = inside_loop(program, block, batch, index, whole, rows)
        terms = [value(i, block.states[i]) for i in sums]
        return (
            accumulated(program, block, batch, sums, carry[0], terms),
            [value(i, state) for i, state in latest],
            [
                lax.dynamic_update_slice_in_dim(
                    all_rows, rows, index * rows.shape[state.dim], axis=state.dim
                )
                for all_rows, (i, state) in zip(carry[2], wanted, strict=True)
                for rows in (value(i, state),)
            ],
        ), None

    init = (
        empty_sums(program, block, sums),
        [_empty(program, batch, *i) for i in latest],
        [jnp.zeros(program.avals[i].shape, program.avals[i].dtype) for i, _ in wanted],
    )
    with source_scope(loop_source(program, block)):
        (total, last, all_rows), _ = lax.scan(
            step, init, jnp.arange(batch.num_microbatches, dtype=jnp.int32)
        )
    whole.update(zip(sums, total, strict=True))
    whole.update((i, value) for (i, _), value in zip(latest, last, strict=True) if i not in whole)
    results = after_loop(program, block, whole)
    for j, value in zip(passing, last, strict=False):
        results[j] = value
    whole.update((i, value) for (i, _), value in zip(wanted, all_rows, strict=True))
    return [*results, *(whole[places[v]] for v in collected)]


def _passing(joint: Joint, block: BlockTime) -> dict[int, TimeState]:
    """Results (positions) that each micro-batch passes on, and how they leave it.

    A cotangent that goes on as it came is none of them: nothing is made of it.
    """
    program, states = joint.program, _rows(joint)
    values = (*joint.piece.leaving, *joint.inward)
    return {
        j: states.get(v, block.outputs[j])
        for j, v in enumerate(values)
        if (v in states or v in joint.joined.difference(joint.once))
        and program.outputs[j] not in program.inputs
    }


def _rows(joint: Joint) -> dict[Var, TimeState]:
    """Where rows are in what enters and leaves as such."""
    entering = enumerate(joint.piece.entering, start=joint.first_crossing)
    dims, parts = joint.batch_dims, joint.crossed.parts
    found = {v: split(dims[n], parts[n]) for n, v in entering if n in dims}
    return found | dict(joint.rows)


def _empty(program: Program, batch: Batch, ident: int, state: TimeState) -> Array:
    aval = program.avals[ident]
    shape = list(aval.shape)
    if state.kind == SPLIT:
        shape[state.dim] //= batch.num_microbatches
    return jnp.zeros(shape, aval.dtype)


def _no_cut(cutter: Cutter, variable: Var, reason: str) -> TraceError:
    return TraceError(f"no cut is possible after {_made(cutter, variable)}: {reason}")


def _made(cutter: Cutter, variable: Var) -> str:
    """Name the operator that makes a variable of the chain."""
    eqn = cutter.chain.links[cutter.chain.maker[variable]]
    return f"{eqn.primitive.name} at {source_line(eqn.source_info)}"
