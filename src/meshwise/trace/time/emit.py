"""Analysed step -> a new step with an explicit `scan` over micro-batches.

The result is an ordinary jaxpr: the planner in space treats the loop like any scan, so a
gradient accumulator is a carry that may stay partial, and a gather of weights before or inside
the loop is the layout of a scan constant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
from jax import Array, lax

from meshwise.graph.follow import strategy_for_result
from meshwise.graph.layout import SUM, Layout
from meshwise.jax_compat.source_lines import SourceInfo, source_scope
from meshwise.rules.table import primitive_rule
from meshwise.trace.evaluate import run_node, run_structured
from meshwise.trace.program import Node, Program
from meshwise.trace.time.monoids import combine, identity_of
from meshwise.trace.time.row_blocks import run_row_blocks
from meshwise.trace.time.rows import join_rows, take_rows
from meshwise.trace.time.shards import TimeShards
from meshwise.trace.time.state import (
    AFTER_LOOP,
    BEFORE_LOOP,
    BLOCKS,
    INSIDE_LOOP,
    LOCAL,
    PARTIAL,
    SPLIT,
    WHOLE,
    Batch,
    BlockTime,
    NodeTime,
    R,
    TimeState,
    reduction_of,
    split,
)

# What only turns or repeats a value.
_MOVES = ("transpose", "rev", "broadcast_in_dim", "reshape", "squeeze", "expand_dims")


class _Block:
    """Values of one micro-batch while a block is traced; lives only inside `run_block`."""

    def __init__(
        self,
        program: Program,
        block: BlockTime,
        batch: Batch,
        index: Array,
        whole: dict[int, Array],
    ) -> None:
        self.program = program
        self.block = block
        self.batch = batch
        self.index = index
        self.whole = whole  # values that are equal for all micro-batches
        self.micro: dict[tuple[int, TimeState], Array] = {}
        self.producer = {out: node for node in program.nodes for out in node.outputs}

    def get(self, ident: int, want: TimeState) -> Array:
        state = self.block.states[ident]
        key = (ident, want)
        if key not in self.micro:
            self.micro[key] = self._convert(ident, state, want)
        return self.micro[key]

    def _convert(self, ident: int, state: TimeState, want: TimeState) -> Array:
        if state.kind in (WHOLE, LOCAL) and want.kind == SPLIT:
            return self._rows(ident, state, want)
        if state.kind == WHOLE:
            value = self._whole(ident)
            if want.kind == PARTIAL:
                value = jnp.asarray(value)
                neutral = jnp.full_like(value, identity_of(want.monoid, value.dtype))
                return jnp.where(self.index == 0, value, neutral)
            return value
        value = self.micro[(ident, state)]
        if state.kind == LOCAL and want.kind == PARTIAL:
            return value / self.batch.num_microbatches
        return value

    def _whole(self, ident: int) -> Array:
        if ident in self.program.constants:
            return self.program.constants[ident]
        if ident not in self.whole:  # One of `_views`.
            node = self.producer[ident]
            results = run_node(node, [self._whole(i) for i in node.inputs])
            self.whole.update(zip(node.outputs, results, strict=True))
        return self.whole[ident]

    def _rows(self, ident: int, state: TimeState, want: TimeState) -> Array:
        """Rows of a value that has them all: made for the micro-batch if possible, else sliced.

        That goes for dense products too: with the rows split, all micro-batches together do the
        work of the whole once, and nothing is stored at full batch.
        """
        node = self.producer.get(ident)
        if node is not None and not node.bodies:
            cloned = self._clone(node, node.outputs.index(ident), want)
            if cloned is not None:
                return cloned
        value = self.micro[ident, state] if state.kind == LOCAL else self._whole(ident)
        return take_rows(jnp.asarray(value), want, self.batch, self.index)

    def _clone(self, node: Node, position: int, rows: TimeState) -> Array | None:
        row = primitive_rule(node.equation)
        rule = row.rule(node.equation)
        rank = len(node.equation.out_avals[position].shape)
        wanted = Layout(tuple((0,) if d == rows.dim else () for d in range(rank)))
        chosen = strategy_for_result(rule, position, wanted, (self.batch.num_microbatches,))
        if chosen is None:
            return None
        (choice,), layouts = chosen
        loop, count = rule.loops[choice] if choice >= 0 else None, self.batch.num_microbatches
        if loop is not None and (loop.block or loop.size % (rows.parts * count)):
            return None
        operands = []
        for ident, layout in zip(node.inputs, layouts, strict=True):
            split_dim = next((d for d, axes in enumerate(layout.dims) if axes), None)
            want = R if split_dim is None else split(split_dim, rows.parts)
            state = self.block.states[ident]
            if state.kind not in (WHOLE, LOCAL) and state != want:
                return None
            operands.append(self.get(ident, want))
        shards = TimeShards(rule, choice, replace(self.batch, groups=rows.parts), self.index)
        with source_scope(node.source):
            return row.local(node.equation, shards, operands)[position]

    def run(self) -> None:
        for node, decision in zip(self.program.nodes, self.block.nodes, strict=True):
            if decision.region != INSIDE_LOOP:
                continue
            with source_scope(node.source):
                self._run_node(node, decision)

    def _run_node(self, node: Node, decision: NodeTime) -> None:
        if all(state.kind == WHOLE for state in decision.results):
            operands = [self.get(i, TimeState(WHOLE)) for i in node.inputs]
            self.whole.update(zip(node.outputs, run_node(node, operands), strict=True))
            return
        operands = [self.get(i, w) for i, w in zip(node.inputs, decision.wants, strict=True)]
        if node.bodies:
            results = _run_bodies(node, decision, self.batch, self.index, operands)
        elif decision.choice == BLOCKS:
            parts = self.batch.num_microbatches
            results = run_row_blocks(node.equation, decision.wants, parts, operands)
        else:
            row = primitive_rule(node.equation)
            rule = row.rule(node.equation)
            batch = replace(self.batch, groups=decision.parts)
            shards = TimeShards(rule, decision.choice, batch, self.index)
            results = row.local(node.equation, shards, operands)
            results = [
                self._localized(value, ident, reduction_of(rule, decision.choice))
                for value, ident in zip(results, node.outputs, strict=True)
            ]
        for ident, state, value in zip(node.outputs, decision.results, results, strict=True):
            if state.kind == WHOLE:
                self.whole[ident] = value
            else:
                self.micro[(ident, state)] = value

    def _localized(self, value: Array, ident: int, monoid: str) -> Array:
        """Return a term of a sum as a statistic of its micro-batch: it scales up to the batch."""
        if self.block.states[ident].kind == LOCAL and monoid == SUM:
            return value * self.batch.num_microbatches
        return value


def _run_bodies(
    node: Node, decision: NodeTime, batch: Batch, index: Array, operands: Sequence[Array]
) -> list[Array]:
    def body(part: int, values: list[Array]) -> list[Array]:
        return run_block(node.bodies[part], decision.bodies[part], batch, index, values)

    return run_structured(node, operands, body)


def _start_block(
    program: Program,
    block: BlockTime,
    batch: Batch,
    index: Array,
    whole: dict[int, Array],
    micro: Sequence[tuple[int, TimeState, Array]],
) -> _Block:
    run = _Block(program, block, batch, index, whole)
    for ident, state, value in micro:
        run.micro[(ident, state)] = value
    run.run()
    return run


def run_block(
    program: Program, block: BlockTime, batch: Batch, index: Array, args: Sequence[Array]
) -> list[Array]:
    """One micro-batch of a body: results in the states `block.outputs`."""
    whole: dict[int, Array] = {}
    micro: list[tuple[int, TimeState, Array]] = []
    for ident, state, value in zip(program.inputs, block.inputs, args, strict=True):
        if state.kind == WHOLE:
            whole[ident] = value
        else:
            micro.append((ident, state, value))
    run = _start_block(program, block, batch, index, whole, micro)
    return [
        jnp.asarray(run.get(i, state), program.avals[i].dtype)
        if not jnp.issubdtype(program.avals[i].dtype, jax.dtypes.prng_key)
        else run.get(i, state)
        for i, state in zip(program.outputs, block.outputs, strict=True)
    ]


def microbatched(
    program: Program, block: BlockTime, batch: Batch, args: Sequence[Array]
) -> list[Array]:
    """Return the step with its loop over micro-batches, on flat full-batch arguments.

    Args:
        program: The flat step.
        block: Its analysis.
        batch: How the batch is cut.
        args: Flat arguments.

    Returns:
        Flat results, equal to those of the step at full batch.
    """
    whole = before_loop(program, block, args)
    carried, stacked, equal = made_inside(program, block)
    stacked = [i for i in stacked if i not in whole]

    def step(carry: list[Array], index: Array) -> tuple[list[Array], list[Array]]:
        rows = {
            i: take_rows(whole[i], state, batch, index)
            for i, state in zip(program.inputs, block.inputs, strict=True)
            if state.kind == SPLIT
        }
        value = inside_loop(program, block, batch, index, whole, rows)
        terms = [value(i, block.states[i]) for i in carried]
        new = accumulated(program, block, batch, carried, carry, terms)
        return new, [value(i, block.states[i]) for i in (*stacked, *equal)]

    init = empty_sums(program, block, carried)
    with source_scope(loop_source(program, block)):
        final, ys = lax.scan(step, init, jnp.arange(batch.num_microbatches, dtype=jnp.int32))
    whole.update(zip(carried, final, strict=True))
    for i, rows in zip((*stacked, *equal), ys, strict=True):
        # What is equal for all micro-batches, but made inside: the last one's will do.
        with source_scope(program.source(i)):
            whole[i] = rows[-1] if i in equal else join_rows(rows, block.states[i], batch)
    return after_loop(program, block, whole)


def before_loop(program: Program, block: BlockTime, args: Sequence[Array]) -> dict[int, Array]:
    """Arguments and what is made before the loop, by id."""
    whole: dict[int, Array] = dict(zip(program.inputs, args, strict=True))
    _run_region(program, block, BEFORE_LOOP, whole)
    return whole


def inside_loop(
    program: Program,
    block: BlockTime,
    batch: Batch,
    index: Array,
    whole: dict[int, Array],
    rows: Mapping[int, Array],
) -> Callable[[int, TimeState], Array]:
    """Run one micro-batch.

    Args:
        program: The flat step.
        block: Its analysis.
        batch: How the batch is cut.
        index: Number of the micro-batch.
        whole: What is known before the loop.
        rows: Rows of the micro-batch, for the arguments that are batch data.

    Returns:
        What gives the value of an id in a state: that of the analysis, or rows of what is whole.
    """
    views = _views(program, block)
    inner = {i: v for i, v in whole.items() if block.states[i].kind == WHOLE and i not in views}
    micro = [(i, block.states[i], value) for i, value in rows.items()]
    run = _start_block(program, block, batch, index, inner, micro)
    return run.get


def _views(program: Program, block: BlockTime) -> set[int]:
    """Return what is made before the loop and again inside, where XLA fuses it into its users.

    A copy from before the loop would be kept for all micro-batches, as a transposed weight.
    """
    return {
        out
        for node, decision in zip(program.nodes, block.nodes, strict=True)
        if decision.region == BEFORE_LOOP and node.name in _MOVES
        if all(block.states[i].kind == WHOLE for i in node.inputs)
        for out in node.outputs
    }


def after_loop(program: Program, block: BlockTime, whole: dict[int, Array]) -> list[Array]:
    """Results of the step, from what the loop left in `whole`."""
    _run_region(program, block, AFTER_LOOP, whole)
    return [whole[i] if i in whole else program.constants[i] for i in program.outputs]


def made_inside(program: Program, block: BlockTime) -> tuple[list[int], list[int], list[int]]:
    """Return what the loop makes for later: terms that are summed, rows, what is always equal."""
    found = _needed_after(program, block)
    kinds = {i: block.states[i].kind for i in found}
    return (
        [i for i in found if kinds[i] in (PARTIAL, LOCAL)],
        [i for i in found if kinds[i] == SPLIT],
        [i for i in found if kinds[i] == WHOLE],
    )


def empty_sums(program: Program, block: BlockTime, ids: Sequence[int]) -> list[Array]:
    """Return what terms are added to first."""
    avals = [program.avals[i] for i in ids]
    return [
        jnp.full(aval.shape, identity_of(_monoid(block.states[i]), aval.dtype))
        for i, aval in zip(ids, avals, strict=True)
    ]


def loop_source(program: Program, block: BlockTime) -> SourceInfo | None:
    """Return the source of what runs first in the loop over micro-batches."""
    nodes = zip(program.nodes, block.nodes, strict=True)
    return next((node.source for node, d in nodes if d.region == INSIDE_LOOP), None)


def accumulated(
    program: Program,
    block: BlockTime,
    batch: Batch,
    ids: Sequence[int],
    sums: Sequence[Array],
    terms: Sequence[Array],
) -> list[Array]:
    """Sums with the terms of one more micro-batch."""
    found: list[Array] = []
    for i, acc, term in zip(ids, sums, terms, strict=True):
        state = block.states[i]
        with source_scope(program.source(i)):
            found.append(combine(_monoid(state), acc, _term(state, term, batch)))
    return found


def _monoid(state: TimeState) -> str:
    return state.monoid if state.kind == PARTIAL else SUM


def _term(state: TimeState, value: Array, batch: Batch) -> Array:
    return value / batch.num_microbatches if state.kind == LOCAL else value


def _needed_after(program: Program, block: BlockTime) -> list[int]:
    """Values made inside the loop that equations after it or results need, in order of ids."""
    needed = set(program.outputs)
    for node, decision in zip(program.nodes, block.nodes, strict=True):
        if decision.region == AFTER_LOOP:
            needed.update(node.inputs)
    made = {
        out
        for node, decision in zip(program.nodes, block.nodes, strict=True)
        if decision.region == INSIDE_LOOP
        for out in node.outputs
    }
    return sorted(needed & made)


def _run_region(program: Program, block: BlockTime, region: str, whole: dict[int, Array]) -> None:
    for node, decision in zip(program.nodes, block.nodes, strict=True):
        if decision.region == region:
            operands = [whole[i] if i in whole else program.constants[i] for i in node.inputs]
            whole.update(zip(node.outputs, run_node(node, operands), strict=True))
