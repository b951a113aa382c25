"""The graph to plan of a piece: its micro-batches in a loop, then its share of the update."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax

from meshwise.errors import TraceError
from meshwise.graph.graph import Graph
from meshwise.inter.boundary import primary
from meshwise.inter.phases import divided_body
from meshwise.inter.piece import Crossing, PieceGraph
from meshwise.jax_compat import source_line
from meshwise.trace.flatten import flatten
from meshwise.trace.layers.chain import num_bytes
from meshwise.trace.layers.crossing import analyzed
from meshwise.trace.layers.cut import Cutter, Piece
from meshwise.trace.layers.equations import traced, variables
from meshwise.trace.layers.joint import Joint
from meshwise.trace.layers.update import Share, Update
from meshwise.trace.program import Program
from meshwise.trace.sink import with_constants_inside
from meshwise.trace.time.emit import (
    accumulated,
    after_loop,
    before_loop,
    empty_sums,
    inside_loop,
    made_inside,
)
from meshwise.trace.time.state import LOCAL, SPLIT, WHOLE, Batch, BlockTime
from meshwise.trace.to_graph import to_graph


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceProgram:
    """A piece as a program, with its graph, and where everything stands in it.

    Inputs are arguments of the step, what enters, cotangents of what leaves, gradients of tied
    parameters that other pieces send, values of the loss, what the update joins.  Results are
    state, what leaves, cotangents of what entered, gradients sent to other pieces, other results
    of the step, what is sent to be joined.

    Attributes:
        program: The equations.
        graph: Made from them.
        joint: The piece, differentiated.
        share: What it does of the update.
        arguments: Positions of the step's arguments.
        tied: Parameters (numbers) whose gradients other pieces send.
        sent: Parameters (numbers) whose gradients go to other pieces.
        results: Positions of the step's results, state first, in the order of the results.
        num_state: How many of them are state.
    """

    program: Program
    graph: PieceGraph
    joint: Joint
    share: Share
    arguments: tuple[int, ...]
    tied: tuple[int, ...]
    sent: tuple[int, ...]
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
    batch = Batch(batch_size, num_microbatches, 1)
    block = in_microbatches(cutter, joint, batch, local_statistics=local_statistics)
    owned = {r for r in piece.roots if r in share.owned}
    tied = [r for r in piece.roots if r in owned and r in share.tied]
    of_state = {j: i for i, j in split.aliases}
    state, arguments = arguments_of(cutter, piece, share)

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
    ]

    def run(*operands: Any) -> list[Any]:
        rest = iter(operands)
        args, entering, cotangents, foreign, values, shared = (
            [next(rest) for _ in part] for part in parts
        )
        given: list[Any] = [None] * len(split.in_avals)
        for i, value in zip(arguments, args, strict=True):
            given[i] = value
        roots = cutter.prepare(piece, given)
        inputs = [*(given[i] for i in piece.arguments), *roots, *entering, *cotangents]
        made = iter(_in_time(joint, block, batch, inputs))
        leaving = [next(made) for _ in piece.leaving]
        backward = [next(made) for _ in joint.inward]
        gradients = dict(zip(piece.roots, made, strict=True))
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
        results, sends = update.run(share, given, total, known, shared)
        new = dict(zip(share.results, results, strict=True))
        kept = [new.pop(j) for j in share.results if j in of_state]
        return [*kept, *leaving, *backward, *sent, *new.values(), *sends]

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
                num_bytes=b,
                is_adjacent=v in adjacent,
            )
            for n, (v, b) in enumerate(zip(piece.entering, sizes, strict=False))
            if v not in joint.joined
        ),
        leaving=tuple(
            Crossing(
                value=after + n,
                cotangent=out.get(v, -1),
                num_bytes=num_bytes(micro(v.aval, joint.rows.get(v))),
                is_adjacent=v in adjacent,
            )
            for n, v in enumerate(piece.leaving)
            if v not in joint.joined
        ),
        batch_dims=dims,
        state=tuple(range(len(state))),
        num_microbatches=num_microbatches,
        forward=forward,
        border=border,
    )
    check_crossings(cutter, joint, planned, to_run=False)
    return PieceProgram(
        program=program,
        graph=planned,
        joint=joint,
        share=share,
        arguments=tuple(arguments),
        tied=tuple(tied),
        sent=tuple(r for r in piece.roots if r not in owned),
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
    read = {*piece.arguments, *cutter.arguments_of_roots(piece), *share.arguments}
    return state, [*state, *sorted(read.difference(state))]


def _in_time(joint: Joint, block: BlockTime, batch: Batch, inputs: Sequence[Any]) -> list[Any]:
    """Results of a piece after all micro-batches: sums, and the rows of the last one."""
    program = joint.program
    whole = before_loop(program, block, inputs)
    rows = {program.inputs[n]: inputs[n] for n in (*joint.batch_dims, *joint.crossed.local)}
    sums, stacked, equal = made_inside(program, block)
    latest = [*stacked, *equal]

    def step(carry: Any, index: Any) -> Any:
        made = inside_loop(program, block, batch, index, whole, rows)
        return (accumulated(block, batch, sums, carry[0], made(sums)), made(latest)), None

    init = empty_sums(program, block, sums), [_empty(program, block, batch, i) for i in latest]
    last, _ = lax.scan(step, init, jnp.arange(batch.num_microbatches, dtype=jnp.int32))
    for ids, values in zip((sums, latest), last, strict=True):
        whole.update(zip(ids, values, strict=True))
    return after_loop(program, block, whole)


def _empty(program: Program, block: BlockTime, batch: Batch, ident: int) -> Any:
    aval, state = program.avals[ident], block.states[ident]
    shape = list(aval.shape)
    if state.kind == SPLIT:
        shape[state.dim] //= batch.num_microbatches
    return jnp.zeros(shape, aval.dtype)


def in_microbatches(
    cutter: Cutter, joint: Joint, batch: Batch, *, local_statistics: bool
) -> BlockTime:
    """How a differentiated piece runs micro-batch by micro-batch.

    Args:
        cutter: Of the step.
        joint: The piece.
        batch: How the batch is cut.
        local_statistics: Let what does not separate become a statistic of each micro-batch.

    Raises:
        TraceError: it does not.
    """
    piece = joint.piece
    start = len(joint.program.inputs) - len(piece.entering) - len(joint.outward)
    for n, v in enumerate((*piece.entering, *joint.outward)):
        if start + n not in joint.batch_dims and v not in joint.joined:
            raise _no_cut(cutter, v, "what crosses it are not the rows of a micro-batch")
    block = analyzed(
        joint.program, joint.batch_dims, joint.crossed, batch, local_statistics=local_statistics
    )
    results = zip((*piece.leaving, *joint.inward), block.outputs, strict=False)
    for n, (v, state) in enumerate(results):
        if v not in joint.joined:
            continue
        is_cotangent = n >= len(piece.leaving)
        if local_statistics and state.kind not in (LOCAL, WHOLE):
            raise _no_cut(cutter, v, "what crosses it is not there for each micro-batch alone")
        if is_cotangent and not local_statistics and state.kind != WHOLE:
            raise _no_cut(
                cutter, v, "what crosses it joins all micro-batches, and the loss bends it"
            )
    return block


def check_crossings(cutter: Cutter, joint: Joint, piece: PieceGraph, *, to_run: bool) -> None:
    """Refuse what no pipeline can run yet.

    Args:
        cutter: Of the step.
        joint: A piece of it, differentiated.
        piece: Its graph.
        to_run: Whether it shall run; else only what cannot be planned is refused.

    Raises:
        TraceError: an auxiliary result has rows of the batch, or no gradient comes back over a cut.
    """
    split, graph = cutter.split, piece.graph
    aux = set(variables(split.forward.jaxpr.outvars[1 : 1 + split.num_aux]))
    for v in joint.piece.leaving:
        if to_run and v in aux and v in joint.rows:
            raise _refused(
                cutter,
                v,
                "an auxiliary result of the loss with a dim of the batch cannot leave a step in "
                "stages yet; return sums or means over the batch, or use one mesh",
            )
    main = primary(piece.entering)
    crossing = [v for v in joint.piece.entering if v not in joint.joined]
    for v, c in zip(crossing, piece.entering, strict=True):
        if c.cotangent < 0:
            continue
        back = graph.tensors[graph.outputs[c.cotangent]]
        is_whole = back.shape != graph.tensors[graph.inputs[c.value]].shape
        if (to_run and is_whole) or (back.generated and c is main):
            raise _refused(
                cutter,
                v,
                "no gradient comes back to it over a cut (stop_gradient, or an auxiliary result "
                "made of it), which steps in stages cannot run yet: use one mesh, or compute the "
                "auxiliary result of what the loss is made of, too",
            )


def _refused(cutter: Cutter, variable: Any, reason: str) -> TraceError:
    eqn = cutter.chain.links[cutter.chain.maker[variable]]
    return TraceError(f"{eqn.primitive.name} at {source_line(eqn.source_info)}: {reason}")


def _no_cut(cutter: Cutter, variable: Any, reason: str) -> TraceError:
    eqn = cutter.chain.links[cutter.chain.maker[variable]]
    return TraceError(
        f"no cut is possible after {eqn.primitive.name} at {source_line(eqn.source_info)}: {reason}"
    )


def _loop(graph: Graph, length: int) -> int:
    """The operator that runs the micro-batches: the scan with the largest body."""
    loops = [
        i
        for i, op in enumerate(graph.operators)
        if op.structure is not None and op.kind == "scan" and op.structure.length == length
    ]
    return max(loops, key=lambda i: len(graph.operators[i].bodies[0].operators))
