"""A piece of the forward pass with its backward pass, as one program.

Source: docs/decisions/0020: cut, then differentiate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import partial
from types import FunctionType
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import jaxprs_in_params

from meshwise.plan.stage import Remat
from meshwise.trace.arange import with_batch_dims
from meshwise.trace.flatten import flatten
from meshwise.trace.layers.chain import num_bytes
from meshwise.trace.layers.crossing import analyzed, is_joined
from meshwise.trace.layers.cut import Cutter, Piece
from meshwise.trace.layers.equations import traced
from meshwise.trace.program import Node, Program
from meshwise.trace.time.state import SPLIT, Batch, Crossed
from meshwise.trace.to_graph import equation_detail


@dataclass(frozen=True, slots=True, kw_only=True)
class Joint:
    """Forward and backward pass of a piece at full batch.

    Attributes:
        piece: The piece.
        program: Inputs: `arguments`, parameters, entering activations, cotangents of the leaving
            ones.  Results: leaving activations, cotangents of the entering ones, gradients.
        batch_dims: Batch dim of each input of the program that holds rows, by position.
        crossed: What the program has from other pieces and gives to them.
        inward: Entering activations that have a cotangent.
        outward: Leaving activations that have a cotangent: those that later pieces read.
        rows: Batch dim of each leaving activation that holds rows.
        joined: Entering and leaving values that all rows have a part in, and small: a term of the
            loss, as the balancing of experts, that later pieces add to others.  They cross a cut
            once for each step, after all micro-batches; the loss is linear in them, so that their
            cotangents are known before the first one.  Where statistics are local they cross it in
            each micro-batch.
        once: Those of them that cross a cut once for each step.
    """

    piece: Piece
    program: Program
    batch_dims: Mapping[int, int]
    crossed: Crossed
    inward: tuple[Any, ...]
    outward: tuple[Any, ...]
    rows: Mapping[Any, int]
    joined: frozenset[Any]
    once: frozenset[Any]


def join(
    cutter: Cutter,
    piece: Piece,
    rows: Mapping[Any, int],
    joined: AbstractSet[Any],
    batch_size: int,
    remat: Remat = "none",
    *,
    local_statistics: bool = False,
) -> Joint:
    """Differentiate a piece.

    Args:
        cutter: Of the step.
        piece: A run of links.
        rows: Batch dim of each activation that enters.
        joined: Values of earlier pieces that all rows have a part in.
        batch_size: Rows of the whole batch.
        remat: What the backward pass computes again.
        local_statistics: Let what does not separate become a statistic of each micro-batch.

    Raises:
        TraceError: the piece does not separate into micro-batches.
    """
    split = cutter.split
    loss = split.forward.jaxpr.outvars[0]
    inward = tuple(v for v in piece.entering if cutter.has_cotangent(v))
    outward = tuple(
        v for v in piece.leaving if cutter.has_cotangent(v) and cutter.is_read_after(v, piece.last)
    )
    arguments = [split.in_avals[i] for i in piece.arguments]
    roots = [split.roots[r].aval for r in piece.roots]
    entering = [v.aval for v in piece.entering]

    def taken_apart(operands: Sequence[Any]) -> tuple[list[Any], list[Any], dict[Any, Any]]:
        given: list[Any] = [None] * len(split.in_avals)
        for i, value in zip(piece.arguments, operands, strict=False):
            given[i] = value
        weights = list(operands[len(arguments) :][: len(roots)])
        values = operands[len(arguments) + len(roots) :]
        return given, weights, dict(zip(piece.entering, values, strict=False))

    def forward(*operands: Any) -> list[Any]:
        given, weights, values = taken_apart(operands)
        return cutter.forward(piece, given, weights, [values[v] for v in piece.entering])

    def both(*operands: Any) -> list[Any]:
        given, weights, values = taken_apart(operands)

        def ahead(weights: Any, inner: Any) -> Any:
            now = {**values, **dict(zip(inward, inner, strict=True))}
            outs = cutter.forward(piece, given, weights, [now[v] for v in piece.entering])
            named = dict(zip(piece.leaving, outs, strict=True))
            return [named[v] for v in (*outward, loss) if v in named], outs

        _, back, outs = jax.vjp(
            rematerialised(ahead, remat), weights, [values[v] for v in inward], has_aux=True
        )
        cotangents = list(operands[len(arguments) + len(roots) + len(entering) :])
        if loss in piece.leaving:
            cotangents.append(jnp.ones(loss.aval.shape, loss.aval.dtype))
        gradients, backward = back(cotangents)
        return [*outs, *backward, *gradients]

    avals = [*arguments, *roots, *entering]
    dims = {n: split.batch_dims[i] for n, i in enumerate(piece.arguments) if i in split.batch_dims}
    start = len(arguments) + len(roots)
    dims |= {start + n: rows[v] for n, v in enumerate(piece.entering) if v in rows}
    streamed = {start + n for n, v in enumerate(piece.entering) if v in rows}
    entered = frozenset(start + n for n, v in enumerate(piece.entering) if v in joined)
    crossed = Crossed(
        streamed=frozenset(streamed),
        late=frozenset() if local_statistics else entered,
        local=entered if local_statistics else frozenset(),
    )
    found, after = _leaving(
        flatten(traced(forward, avals)), dims, crossed, piece, batch_size, local_statistics
    )
    after = {v for v in after if cutter.is_read_after(v, piece.last)}
    dims |= {len(avals) + n: found[v] for n, v in enumerate(outward) if v in found}
    streamed |= {len(avals) + n for n, v in enumerate(outward) if v in found}
    after |= joined & set(piece.entering)
    crossed = replace(crossed, streamed=frozenset(streamed))
    if local_statistics:
        cotangents = {len(avals) + n for n, v in enumerate(outward) if v in after}
        results = {n for n, v in enumerate((*piece.leaving, *inward)) if v in after}
        crossed = replace(crossed, local=entered | cotangents, local_results=frozenset(results))
    program = flatten(traced(both, [*avals, *(v.aval for v in outward)]))
    return Joint(
        piece=piece,
        program=_once(without_barriers(with_batch_dims(program)), dims),
        batch_dims=dims,
        crossed=crossed,
        inward=inward,
        outward=outward,
        rows=found,
        joined=frozenset(after),
        once=frozenset() if local_statistics else frozenset(after),
    )


def rematerialised(fun: Callable[..., Any], remat: Remat) -> Callable[..., Any]:
    """A function whose backward pass computes again what it does not keep."""
    match remat:
        case "none":
            return fun
        case "full":
            return jax.checkpoint(fun)
        case "selective":
            return jax.checkpoint(
                fun, policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable
            )


def without_barriers(program: Program) -> Program:
    """A program whose recomputed values are not held apart from the first ones.

    Forward and backward pass of a stage run as programs of their own: nothing can merge what the
    one computes with what the other computes again, so barriers would only cost copies.
    """
    same: dict[int, int] = {}
    nodes: list[Node] = []
    for node in program.nodes:
        inputs = tuple(same.get(i, i) for i in node.inputs)
        if node.name == "optimization_barrier":
            same.update(zip(node.outputs, inputs, strict=True))
        else:
            nodes.append(replace(node, inputs=inputs))
    outputs = tuple(same.get(i, i) for i in program.outputs)
    return replace(program, nodes=tuple(nodes), outputs=outputs)


def _once(program: Program, batch_dims: Mapping[int, int]) -> Program:
    """A program that makes what does not depend on the batch once.

    Rematerialisation casts each weight a second time; a stage makes such values before its first
    micro-batch, for both passes.
    """
    moving = {program.inputs[n] for n in batch_dims}
    same: dict[int, int] = {}
    seen: dict[object, tuple[int, ...]] = {}
    nodes: list[Node] = []
    for node in program.nodes:
        inputs = tuple(same.get(i, i) for i in node.inputs)
        is_moving = any(i in moving for i in inputs)
        # The text of the parameters leaves functions and bodies out: such equations may differ.
        params = node.equation.params
        says_all = not any(jaxprs_in_params(params)) and not any(
            isinstance(value, FunctionType | partial) for value in params.values()
        )
        key = (node.name, equation_detail(node.equation), inputs)
        if is_moving:
            moving.update(node.outputs)
        elif says_all and key in seen:
            same.update(zip(node.outputs, seen[key], strict=True))
            continue
        else:
            seen[key] = node.outputs
        nodes.append(replace(node, inputs=inputs))
    outputs = tuple(same.get(i, i) for i in program.outputs)
    return replace(program, nodes=tuple(nodes), outputs=outputs)


def _leaving(
    program: Program,
    dims: Mapping[int, int],
    crossed: Crossed,
    piece: Piece,
    batch_size: int,
    local_statistics: bool,
) -> tuple[dict[Any, int], set[Any]]:
    """What leaves a piece: the batch dims of rows, and what all rows have a part in."""
    # Where rows are does not depend on how many parts they are cut into, if it is more than one;
    # the fewest parts separate most easily (experts take tokens in groups of several rows).
    fewest = next((d for d in range(2, batch_size + 1) if batch_size % d == 0), 1)
    block = analyzed(
        with_batch_dims(program),
        dims,
        crossed,
        Batch(batch_size, fewest, 1),
        local_statistics=local_statistics,
    )
    states = list(zip(piece.leaving, block.outputs, strict=True))
    return (
        {v: s.dim for v, s in states if s.kind == SPLIT and s.sections == 1},
        {v for v, s in states if is_joined(s, num_bytes(v.aval))},
    )
