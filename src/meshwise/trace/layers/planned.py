"""The graph to plan of a piece: its micro-batches in a loop, then its share of the update."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import jax.numpy as jnp
from jax import Array

from meshwise.errors import TraceError
from meshwise.graph.buckets import with_buckets
from meshwise.graph.graph import Graph
from meshwise.jax_compat.jaxprs import Aval, Var
from meshwise.pieces.neighbours import CrossingNames
from meshwise.pieces.phases import divided_body
from meshwise.pieces.piece import Crossing, PieceGraph
from meshwise.pieces.values import PieceInputs, PieceResults
from meshwise.program.names import (
    Activation,
    Cotangent,
    CotangentSum,
    Gradient,
    LossValue,
    SentValue,
    SharedValue,
    StepArgument,
    StepResult,
)
from meshwise.trace.flatten import flatten
from meshwise.trace.layers.chain import num_bytes
from meshwise.trace.layers.cut import Cutter, Piece
from meshwise.trace.layers.equations import traced, variables
from meshwise.trace.layers.in_time import in_microbatches, read_before, run_in_time
from meshwise.trace.layers.joint import CutStep, Joint
from meshwise.trace.layers.update import Share, Update
from meshwise.trace.program import Program
from meshwise.trace.sink import with_constants_inside
from meshwise.trace.time.state import Batch, BlockTime
from meshwise.trace.to_graph import to_graph


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceProgram:
    """A piece as a program, with its graph, and what its inputs and results are.

    Attributes:
        program: The equations.
        graph: The graph that is made from them.
        inputs: What each input of program and graph is.
        results: What each result is.
        names: The activations that cross its cuts.
    """

    program: Program
    graph: PieceGraph
    inputs: PieceInputs
    results: PieceResults
    names: CrossingNames


def piece_program(
    step: CutStep,
    joint: Joint,
    update: Update,
    share: Share,
    num_microbatches: int,
    adjacent: AbstractSet[Var],
) -> PieceProgram:
    """Make the program of a piece, and the graph to plan of it.

    Args:
        step: The step that is cut.
        joint: The piece, differentiated.
        update: The update of the step.
        share: What the piece does of the update.
        num_microbatches: B; it divides the batch.
        adjacent: Variables that go from the layer before to the piece, or to the layer after it.

    Returns:
        The program.

    Raises:
        TraceError: the piece does not separate into micro-batches, or has no work in them.
    """
    batch = Batch(step.batch_size, num_microbatches, 1)
    block = in_microbatches(step.cutter, joint, batch, local_statistics=step.local_statistics)
    run = _WholePiece(
        cutter=step.cutter,
        joint=joint,
        update=update,
        share=share,
        batch=batch,
        block=block,
        inputs=_inputs(step.cutter, joint, share, read_before(joint, block)),
        results=_results(step.cutter, joint, share),
    )
    program = with_constants_inside(flatten(traced(run, run.avals().in_order())))
    return PieceProgram(
        program=program,
        graph=_piece_graph(run, program, adjacent),
        inputs=run.inputs,
        results=run.results,
        names=crossing_names(joint),
    )


def arguments_of(
    cutter: Cutter, piece: Piece, share: Share
) -> tuple[tuple[StepArgument, ...], tuple[StepArgument, ...]]:
    """Find the arguments of the step that the graph of a piece takes.

    Args:
        cutter: Cuts the step.
        piece: The piece.
        share: What the piece does of the update.

    Returns:
        Those that the update overwrites, and all others that are read.
    """
    state, batch = share.state, cutter.split.batch_dims
    read = {*piece.arguments, *cutter.arguments_of_roots(piece)}
    read.update(i for i in share.arguments if i not in batch)
    return tuple(map(StepArgument, state)), tuple(map(StepArgument, sorted(read.difference(state))))


def _inputs(cutter: Cutter, joint: Joint, share: Share, read_early: Sequence[int]) -> PieceInputs:
    """Name the inputs of the graph of a piece.

    Args:
        cutter: Cuts the step.
        joint: The piece, differentiated.
        share: What it does of the update.
        read_early: Arguments of which all rows are needed before the first micro-batch.
    """
    piece = joint.piece
    state, arguments = arguments_of(cutter, piece, share)
    of_update = [i for i in share.arguments if i in cutter.split.batch_dims]
    return PieceInputs(
        state=state,
        arguments=arguments,
        entering=tuple(map(Activation, piece.entering)),
        cotangents=tuple(CotangentSum(Activation(v)) for v in joint.outward),
        gradients=tuple(Gradient(r) for r in piece.roots if r in share.owned and r in share.tied),
        values=tuple(map(LossValue, share.values)),
        shared=tuple(map(SharedValue, share.shared)),
        whole=tuple(map(StepArgument, sorted({*read_early, *of_update}))),
    )


def _results(cutter: Cutter, joint: Joint, share: Share) -> PieceResults:
    """Name the results of the graph of a piece."""
    split, piece = cutter.split, joint.piece
    overwriting = {j for _, j in split.aliases}
    # Rows are wanted one behind the other, statistics as a mean.
    values = set(variables(split.forward.jaxpr.outvars[: 1 + split.num_aux]))
    passed = {*joint.rows, *joint.joined.difference(joint.once)}
    return PieceResults(
        state=tuple(StepResult(j) for j in share.results if j in overwriting),
        leaving=tuple(map(Activation, piece.leaving)),
        cotangents=tuple(Cotangent(Activation(v)) for v in joint.inward),
        gradients=tuple(Gradient(r) for r in piece.roots if r not in share.owned),
        others=tuple(StepResult(j) for j in share.results if j not in overwriting),
        sent=tuple(tuple(map(SentValue, phase)) for phase in share.sends),
        collected=tuple(Activation(v) for v in piece.leaving if v in values and v in passed),
    )


_Value = TypeVar("_Value")


class _Operands(NamedTuple, Generic[_Value]):
    """Operands of a piece, or their shapes and dtypes, by the groups of `PieceInputs`."""

    arguments: list[_Value]
    entering: list[_Value]
    cotangents: list[_Value]
    gradients: list[_Value]
    values: list[_Value]
    shared: list[_Value]
    whole: list[_Value]

    def in_order(self) -> list[_Value]:
        return [x for group in self for x in group]


# JAX takes the `repr` of what it traces; that of all fields would take a second for a large model.
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class _WholePiece:
    """A piece as a function of flat operands: all micro-batches, then its share of the update.

    Attributes:
        cutter: Cuts the step.
        joint: The piece, differentiated.
        update: The update of the step.
        share: What the piece does of it.
        batch: How the batch is cut.
        block: How the piece runs micro-batch by micro-batch.
        inputs: What the operands are.
        results: What the results are.
    """

    cutter: Cutter
    joint: Joint
    update: Update
    share: Share
    batch: Batch
    block: BlockTime
    inputs: PieceInputs
    results: PieceResults

    def avals(self) -> _Operands[Aval]:
        """Return the shapes and dtypes of the operands; of rows those of one micro-batch."""
        split, joint, inputs = self.cutter.split, self.joint, self.inputs
        arguments = [a.number for a in (*inputs.state, *inputs.arguments)]
        cut = [
            self.of_microbatch(v.aval, joint.batch_dims.get(n))
            for n, v in enumerate(joint.crossing, start=joint.first_crossing)
        ]
        return _Operands(
            arguments=[
                self.of_microbatch(split.in_avals[i], split.batch_dims.get(i)) for i in arguments
            ],
            entering=cut[: len(inputs.entering)],
            cotangents=cut[len(inputs.entering) :],
            gradients=[split.roots[g.parameter].aval for g in inputs.gradients],
            values=[self.update.values[v.number].aval for v in inputs.values],
            shared=[v.aval for v in self.share.shared],
            whole=[split.in_avals[a.number] for a in inputs.whole],
        )

    def of_microbatch(self, aval: Aval, dim: int | None) -> Aval:
        """Return the shape and dtype of a micro-batch of a value with rows along `dim`."""
        if dim is None:
            return aval
        shape = list(aval.shape)
        shape[dim] //= self.batch.num_microbatches
        return aval.update(shape=tuple(shape))

    def __call__(self, *operands: Array) -> list[Array]:
        """Run the piece; the results are those of `PieceResults`."""
        inputs, results, piece = self.inputs, self.results, self.joint.piece
        rest = iter(operands)
        given = _Operands(*([next(rest) for _ in group] for group in self.avals()))
        arguments: list[Any] = [None] * len(self.cutter.split.in_avals)
        for a, value in zip((*inputs.state, *inputs.arguments), given.arguments, strict=True):
            arguments[a.number] = value
        made = iter(self.microbatches(arguments, given))
        leaving = [next(made) for _ in results.leaving]
        cotangents = [next(made) for _ in results.cotangents]
        gradients = {r: next(made) for r in piece.roots}
        for a, value in zip(inputs.whole, given.whole, strict=True):
            arguments[a.number] = value
        new, sent = self.updated(arguments, gradients, given)
        return [
            *(new[j.number] for j in results.state),
            *leaving,
            *cotangents,
            *(gradients[g.parameter] for g in results.gradients),
            *(new[j.number] for j in results.others),
            *sent,
            *made,
        ]

    def microbatches(self, arguments: Sequence[Array], given: _Operands[Array]) -> list[Array]:
        """Run all micro-batches; `arguments` are those of the step, rows of one micro-batch."""
        piece = self.joint.piece
        roots = self.cutter.prepare(piece, arguments)
        rows = dict(zip([a.number for a in self.inputs.whole], given.whole, strict=True))
        return run_in_time(
            self.joint,
            self.block,
            self.batch,
            [*(arguments[i] for i in piece.arguments), *roots, *given.entering, *given.cotangents],
            {n: rows[i] for n, i in enumerate(piece.arguments) if i in rows},
            [v for v in piece.leaving if Activation(v) in self.results.collected],
        )

    def updated(
        self, arguments: Sequence[Array], gradients: Mapping[int, Array], given: _Operands[Array]
    ) -> tuple[dict[int, Array], list[Array]]:
        """Run the share of the update; results of the step by position, and what is sent."""
        split, share, inputs = self.cutter.split, self.share, self.inputs
        total = {r: g for r, g in gradients.items() if r in share.owned}
        for r in share.owned.difference(gradients):
            total[r] = jnp.zeros(split.roots[r].aval.shape, split.roots[r].aval.dtype)
        for g, other in zip(inputs.gradients, given.gradients, strict=True):
            total[g.parameter] = total[g.parameter] + other
        values: list[Any] = [None] * len(self.update.values)
        for v, value in zip(inputs.values, given.values, strict=True):
            values[v.number] = value
        results, sent = self.update.run(share, arguments, total, values, given.shared)
        return dict(zip(share.results, results, strict=True)), sent


def _piece_graph(run: _WholePiece, program: Program, adjacent: AbstractSet[Var]) -> PieceGraph:
    """Make the graph to plan from the program of a piece."""
    split, joint, inputs, results = run.cutter.split, run.joint, run.inputs, run.results
    arguments = [a.number for a in (*inputs.state, *inputs.arguments)]
    state = tuple(range(len(inputs.state)))
    graph = to_graph(
        program,
        names=dict(zip(program.inputs, [split.names[i] for i in arguments], strict=False)),
        aliases=tuple((k, k) for k in state),
    )
    graph = with_buckets(
        graph,
        inputs=[graph.inputs[i] for i in (*inputs.entering_at, *inputs.cotangents_at)],
        outputs=[graph.outputs[j] for j in (*results.leaving_at, *results.cotangents_at)],
    )
    dims = {k: split.batch_dims[i] for k, i in enumerate(arguments) if i in split.batch_dims}
    first, start = inputs.entering_at.start, joint.first_crossing
    dims |= {first - start + n: dim for n, dim in joint.batch_dims.items() if n >= start}
    local = (n for n in joint.crossed.local if n >= start)
    moving = {graph.inputs[k] for k in (*dims, *(first - start + n for n in local))}
    loop = _loop(graph, run, moving)
    forward, border = divided_body(
        graph,
        loop,
        {graph.inputs[i] for i in inputs.entering_at},
        [graph.outputs[j] for j in results.leaving_at],
    )
    inward = zip(joint.inward, results.cotangents_at, strict=True)
    outward = zip(joint.outward, inputs.cotangents_at, strict=True)
    return PieceGraph(
        graph=graph,
        loop=loop,
        entering=tuple(_entering(run, adjacent)),
        leaving=tuple(_leaving(run, adjacent)),
        batch_dims=dims,
        state=state,
        num_microbatches=run.batch.num_microbatches,
        early=tuple(j for v, j in inward if v in joint.once),
        late=tuple(i for v, i in outward if v in joint.once),
        forward=forward,
        border=border,
        update=results.update_at,
    )


def _entering(run: _WholePiece, adjacent: AbstractSet[Var]) -> Iterator[Crossing]:
    """Yield the activations that enter in each micro-batch."""
    joint, inputs, results = run.joint, run.inputs, run.results
    cotangents = dict(zip(joint.inward, results.cotangents_at, strict=True))
    avals = run.avals().entering
    for v, i, aval in zip(joint.piece.entering, inputs.entering_at, avals, strict=True):
        if v not in joint.once:
            yield Crossing(
                value=i,
                cotangent=cotangents.get(v, -1),
                is_read=True,
                num_bytes=num_bytes(aval),
                is_adjacent=v in adjacent,
            )


def _leaving(run: _WholePiece, adjacent: AbstractSet[Var]) -> Iterator[Crossing]:
    """Yield the activations that leave in each micro-batch."""
    joint, piece, rows = run.joint, run.joint.piece, run.joint.rows
    cotangents = dict(zip(joint.outward, run.inputs.cotangents_at, strict=True))
    for v, j in zip(piece.leaving, run.results.leaving_at, strict=True):
        if v not in joint.once:
            yield Crossing(
                value=j,
                cotangent=cotangents.get(v, -1),
                is_read=run.cutter.is_read_after(v, piece.last),
                num_bytes=num_bytes(run.of_microbatch(v.aval, rows[v].dim if v in rows else None)),
                is_adjacent=v in adjacent,
            )


def crossing_names(joint: Joint) -> CrossingNames:
    """Name the activations that cross the cuts of a piece.

    Args:
        joint: The piece, differentiated.
    """
    once = joint.once
    return CrossingNames(
        entering=tuple(Activation(v) for v in joint.piece.entering if v not in once),
        leaving=tuple(Activation(v) for v in joint.piece.leaving if v not in once),
        early=tuple(Activation(v) for v in joint.inward if v in once),
        late=tuple(Activation(v) for v in joint.outward if v in once),
    )


def _loop(graph: Graph, run: _WholePiece, moving: AbstractSet[int]) -> int:
    """Return the operator that runs the micro-batches: the one that reads what differs in them.

    Args:
        graph: The graph of the piece.
        run: The piece.
        moving: Tensors that are rows, or a statistic, of one micro-batch.
    """
    for i, op in enumerate(graph.operators):
        if op.structure is not None and op.kind == "scan" and not moving.isdisjoint(op.inputs):
            return i
    chain, piece = run.cutter.chain, run.joint.piece
    first, last = (
        f"{chain.links[k].primitive.name} at {chain.where[k]}" for k in (piece.first, piece.last)
    )
    raise TraceError(
        f"the layer from {first} to {last} has no work in the micro-batches: all of it follows "
        "what joins their rows; ask for fewer stages"
    )
