"""The graph to plan of a piece: its micro-batches in a loop, then its share of the update."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from meshwise.graph.graph import Graph
from meshwise.pieces.phases import divided_body
from meshwise.pieces.piece import Crossing, PieceGraph
from meshwise.trace.flatten import flatten
from meshwise.trace.layers.chain import num_bytes
from meshwise.trace.layers.cut import Cutter, Piece
from meshwise.trace.layers.equations import traced, variables
from meshwise.trace.layers.in_time import in_microbatches, read_before, run_in_time
from meshwise.trace.layers.joint import Joint
from meshwise.trace.layers.update import Share, Update
from meshwise.trace.program import Program
from meshwise.trace.sink import with_constants_inside
from meshwise.trace.time.state import Batch
from meshwise.trace.to_graph import to_graph


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceProgram:
    """A piece as a program, with its graph, and where everything stands in it.

    Inputs are arguments of the step, what enters, cotangents of what leaves, gradients of tied
    parameters that other pieces send, values of the loss, what the update joins, batch data that is
    needed whole.  Results are state, what leaves, cotangents of what entered, gradients sent to
    other pieces, other results of the step, what is sent to be joined, values of the loss that
    micro-batches pass on one by one, too.

    Attributes:
        program: The equations.
        graph: Made from them.
        joint: The piece, differentiated.
        share: What it does of the update.
        arguments: Positions of the step's arguments.
        whole: Positions of arguments that are batch data and needed whole, before the loop or in
            the update.
        tied: Parameters (numbers) whose gradients other pieces send.
        sent: Parameters (numbers) whose gradients go to other pieces.
        collected: Values of the loss (variables) that micro-batches pass on one by one, too.
        results: Positions of the step's results, state first, in the order of the results.
        num_state: How many of them are state.
    """

    program: Program
    graph: PieceGraph
    joint: Joint
    share: Share
    arguments: tuple[int, ...]
    whole: tuple[int, ...]
    tied: tuple[int, ...]
    sent: tuple[int, ...]
    collected: tuple[Any, ...]
    results: tuple[int, ...]
    num_state: int


def piece_program(
    cutter: Cutter,
    joint: Joint,
    update: Update,
    share: Share,
    *,
    batch_size: int,
    num_microbatches: int,
    adjacent: AbstractSet[Any],
    local_statistics: bool = False,
) -> PieceProgram:
    """The program of a piece, and the graph to plan of it.

    Args:
        cutter: Of the step.
        joint: The piece, differentiated.
        update: Of the step.
        share: What the piece does of it.
        batch_size: Rows of the whole batch.
        num_microbatches: B; it divides the batch.
        adjacent: Variables that go from the layer before to the piece, or to the layer after it.
        local_statistics: Let what does not separate become a statistic of each micro-batch.

    Raises:
        TraceError: the piece does not separate into micro-batches.
    """
    split, piece = cutter.split, joint.piece
    collected = _collected(cutter, joint)
    batch = Batch(batch_size, num_microbatches, 1)
    block = in_microbatches(cutter, joint, batch, local_statistics=local_statistics)
    owned = {r for r in piece.roots if r in share.owned}
    tied = [r for r in piece.roots if r in owned and r in share.tied]
    of_state = {j: i for i, j in split.aliases}
    state, arguments = arguments_of(cutter, piece, share)
    of_update = [i for i in share.arguments if i in split.batch_dims]
    whole = tuple(sorted({*read_before(joint, block), *of_update}))

    def micro(aval: Any, dim: int | None) -> Any:
        if dim is None:
            return aval
        shape = list(aval.shape)
        shape[dim] //= num_microbatches
        return aval.update(shape=tuple(shape))

    start = len(joint.program.inputs) - len(piece.entering) - len(joint.outward)
    crossing = [
        micro(v.aval, joint.batch_dims.get(start + n))
        for n, v in enumerate((*piece.entering, *joint.outward))
    ]
    parts = [
        [micro(split.in_avals[i], split.batch_dims.get(i)) for i in arguments],
        crossing[: len(piece.entering)],
        crossing[len(piece.entering) :],
        [split.roots[r].aval for r in tied],
        [update.values[k].aval for k in share.values],
        [v.aval for v in share.shared],
        [split.in_avals[i] for i in whole],
    ]

    def run(*operands: Any) -> list[Any]:
        rest = iter(operands)
        args, entering, cotangents, foreign, values, shared, all_rows = (
            [next(rest) for _ in part] for part in parts
        )
        given: list[Any] = [None] * len(split.in_avals)
        for i, value in zip(arguments, args, strict=True):
            given[i] = value
        roots = cutter.prepare(piece, given)
        inputs = [*(given[i] for i in piece.arguments), *roots, *entering, *cotangents]
        rows = dict(zip(whole, all_rows, strict=True))
        full = {n: rows[i] for n, i in enumerate(piece.arguments) if i in rows}
        made = iter(run_in_time(joint, block, batch, inputs, full, collected))
        leaving = [next(made) for _ in piece.leaving]
        backward = [next(made) for _ in joint.inward]
        gradients = {r: next(made) for r in piece.roots}
        sent = [gradients[r] for r in piece.roots if r not in owned]
        total = {r: gradients[r] for r in owned}
        unread = share.owned.difference(piece.roots)
        total |= {
            r: jnp.zeros(split.roots[r].aval.shape, split.roots[r].aval.dtype) for r in unread
        }
        for r, other in zip(tied, foreign, strict=True):
            total[r] = total[r] + other
        known: list[Any] = [None] * len(update.values)
        for k, value in zip(share.values, values, strict=True):
            known[k] = value
        for i, value in rows.items():
            given[i] = value
        results, sends = update.run(share, given, total, known, shared)
        new = dict(zip(share.results, results, strict=True))
        kept = [new.pop(j) for j in share.results if j in of_state]
        return [*kept, *leaving, *backward, *sent, *new.values(), *sends, *made]

    program = with_constants_inside(flatten(traced(run, [a for part in parts for a in part])))
    names = dict(zip(program.inputs, [split.names[i] for i in arguments], strict=False))
    graph = to_graph(program, names=names, aliases=tuple((k, k) for k in range(len(state))))
    first = len(arguments)
    after = len(state)
    back = {v: after + len(piece.leaving) + n for n, v in enumerate(joint.inward)}
    out = {v: first + len(piece.entering) + n for n, v in enumerate(joint.outward)}
    sizes = [num_bytes(a) for a in crossing]
    dims = {k: split.batch_dims[i] for k, i in enumerate(arguments) if i in split.batch_dims}
    dims |= {first - start + n: dim for n, dim in joint.batch_dims.items() if n >= start}
    loop = _loop(graph, num_microbatches)
    forward, border = divided_body(
        graph,
        loop,
        {graph.inputs[first + n] for n in range(len(piece.entering))},
        [graph.outputs[after + n] for n in range(len(piece.leaving))],
    )
    planned = PieceGraph(
        graph=graph,
        loop=loop,
        entering=tuple(
            Crossing(
                value=first + n,
                cotangent=back.get(v, -1),
                is_read=True,
                num_bytes=b,
                is_adjacent=v in adjacent,
            )
            for n, (v, b) in enumerate(zip(piece.entering, sizes, strict=False))
            if v not in joint.once
        ),
        leaving=tuple(
            Crossing(
                value=after + n,
                cotangent=out.get(v, -1),
                is_read=cutter.is_read_after(v, piece.last),
                num_bytes=num_bytes(micro(v.aval, joint.rows.get(v))),
                is_adjacent=v in adjacent,
            )
            for n, v in enumerate(piece.leaving)
            if v not in joint.once
        ),
        batch_dims=dims,
        state=tuple(range(len(state))),
        num_microbatches=num_microbatches,
        early=tuple(back[v] for v in joint.inward if v in joint.once),
        forward=forward,
        border=border,
    )
    return PieceProgram(
        program=program,
        graph=planned,
        joint=joint,
        share=share,
        arguments=tuple(arguments),
        whole=whole,
        tied=tuple(tied),
        sent=tuple(r for r in piece.roots if r not in owned),
        collected=collected,
        results=(
            *(j for j in share.results if j in of_state),
            *(j for j in share.results if j not in of_state),
        ),
        num_state=len(state),
    )


def arguments_of(cutter: Cutter, piece: Piece, share: Share) -> tuple[list[int], list[int]]:
    """Positions of the step's arguments that the graph of a piece takes first.

    Returns:
        Those that the update overwrites; these and behind them all others that are read.
    """
    of_state = {j: i for i, j in cutter.split.aliases}
    state = [of_state[j] for j in share.results if j in of_state]
    batch = cutter.split.batch_dims
    read = {*piece.arguments, *cutter.arguments_of_roots(piece)}
    read.update(i for i in share.arguments if i not in batch)
    return state, [*state, *sorted(read.difference(state))]


def _collected(cutter: Cutter, joint: Joint) -> tuple[Any, ...]:
    """Values of the loss that micro-batches pass on and that the step wants of all of them.

    Rows are wanted one behind the other, statistics as a mean.
    """
    split = cutter.split
    values = set(variables(split.forward.jaxpr.outvars[: 1 + split.num_aux]))
    passed = {*joint.rows, *joint.joined.difference(joint.once)}
    return tuple(v for v in joint.piece.leaving if v in values and v in passed)


def _loop(graph: Graph, length: int) -> int:
    """The operator that runs the micro-batches: the scan with the largest body."""
    loops = [
        i
        for i, op in enumerate(graph.operators)
        if op.structure is not None and op.kind == "scan" and op.structure.length == length
    ]
    return max(loops, key=lambda i: len(graph.operators[i].bodies[0].operators))
