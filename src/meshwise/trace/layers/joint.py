"""A piece of the forward pass with its backward pass, as one program.

Source: docs/decisions/0020: cut, then differentiate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import partial
from types import FunctionType
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import Array

from meshwise.jax_compat.jaxprs import Aval, Var, bodies
from meshwise.plan.stage import Remat
from meshwise.trace.arange import with_batch_dims
from meshwise.trace.flatten import flatten
from meshwise.trace.layers.chain import num_bytes
from meshwise.trace.layers.crossing import analyzed, is_joined
from meshwise.trace.layers.cut import Cutter, Piece
from meshwise.trace.layers.equations import traced
from meshwise.trace.program import Node, Program, merged
from meshwise.trace.time.state import SPLIT, Batch, Crossed, TimeState
from meshwise.trace.to_graph import equation_detail


@dataclass(frozen=True, slots=True, kw_only=True)
class CutStep:
    """A step whose forward pass is cut into pieces.

    Attributes:
        cutter: Cuts the forward pass.
        batch_size: The number of rows of the whole batch.
        local_statistics: Whether what does not separate into micro-batches becomes a statistic of
            each micro-batch.
    """

    cutter: Cutter
    batch_size: int
    local_statistics: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Joint:
    """The forward and backward pass of a piece at full batch.

    Attributes:
        piece: The piece.
        program: Its inputs are `arguments`, parameters, entering activations, cotangents of the
            leaving ones; its results are leaving activations, cotangents of the entering ones,
            gradients.
        batch_dims: The batch dim of each input of the program that holds rows, by position.
        crossed: What the program has from other pieces and gives to them.
        inward: Entering activations that have a cotangent.
        outward: Leaving activations that have a cotangent: those that later pieces read.
        rows: Where rows are in each leaving activation that holds some.
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
    inward: tuple[Var, ...]
    outward: tuple[Var, ...]
    rows: Mapping[Var, TimeState]
    joined: frozenset[Var]
    once: frozenset[Var]

    @property
    def crossing(self) -> tuple[Var, ...]:
        """The variables that enter, and those whose cotangents do: the last inputs."""
        return (*self.piece.entering, *self.outward)

    @property
    def first_crossing(self) -> int:
        """The position of the first input that comes from another piece."""
        return len(self.program.inputs) - len(self.crossing)


def join(
    step: CutStep,
    piece: Piece,
    rows: Mapping[Var, TimeState],
    joined: AbstractSet[Var],
    remat: Remat = "none",
) -> Joint:
    """Differentiate a piece.

    Args:
        step: The step that is cut.
        piece: A run of links.
        rows: Where rows are in each activation that enters.
        joined: Values of earlier pieces that all rows have a part in.
        remat: What the backward pass computes again.

    Returns:
        The piece with its backward pass.

    Raises:
        TraceError: the piece does not separate into micro-batches.
    """
    cutter, is_local = step.cutter, step.local_statistics
    fun = _PieceFunction(cutter, piece, remat)
    avals, dims = fun.avals(), fun.batch_dims(rows)
    count, start = len(avals), len(avals) - len(piece.entering)
    parts = {start + n: rows[v].parts for n, v in enumerate(piece.entering) if v in rows}
    entered = frozenset(start + n for n, v in enumerate(piece.entering) if v in joined)
    crossed = Crossed(
        streamed=frozenset(parts),
        parts=parts,
        late=frozenset() if is_local else entered,
        local=entered if is_local else frozenset(),
    )
    program = flatten(traced(fun.forward, avals))
    found, after = _leaving(step, piece, program, dims, crossed)
    after = {v for v in after if cutter.is_read_after(v, piece.last)}
    outward = list(enumerate(fun.outward, start=count))
    dims |= {n: found[v].dim for n, v in outward if v in found}
    parts |= {n: found[v].parts for n, v in outward if v in found}
    after |= joined & set(piece.entering)
    crossed = replace(crossed, streamed=frozenset(parts), parts=parts)
    if is_local:
        cotangents = {n for n, v in outward if v in after}
        results = {n for n, v in enumerate((*piece.leaving, *fun.inward)) if v in after}
        crossed = replace(crossed, local=entered | cotangents, local_results=frozenset(results))
    program = flatten(traced(fun.both, [*avals, *(v.aval for v in fun.outward)]))
    return Joint(
        piece=piece,
        program=_once(without_barriers(with_batch_dims(program)), dims),
        batch_dims=dims,
        crossed=crossed,
        inward=fun.inward,
        outward=fun.outward,
        rows=found,
        joined=frozenset(after),
        once=frozenset() if is_local else frozenset(after),
    )


# From parameters and activations that enter to those that leave, twice.
_Function: TypeAlias = Callable[..., tuple[list[Array], list[Array]]]


class _PieceFunction:
    """A piece as functions of flat operands: arguments, parameters, what enters, cotangents."""

    def __init__(self, cutter: Cutter, piece: Piece, remat: Remat) -> None:
        self.cutter, self.piece = cutter, piece
        self.remat: Remat = remat
        self.loss = cutter.split.forward.jaxpr.outvars[0]
        self.inward = tuple(v for v in piece.entering if cutter.has_cotangent(v))
        self.outward = tuple(
            v
            for v in piece.leaving
            if cutter.has_cotangent(v) and cutter.is_read_after(v, piece.last)
        )

    def avals(self) -> list[Aval]:
        """Return shapes and dtypes of the operands without the cotangents."""
        split, piece = self.cutter.split, self.piece
        return [
            *(split.in_avals[i] for i in piece.arguments),
            *(split.roots[r].aval for r in piece.roots),
            *(v.aval for v in piece.entering),
        ]

    def batch_dims(self, rows: Mapping[Var, TimeState]) -> dict[int, int]:
        """Return the batch dims of the operands that hold rows, by position."""
        split, piece = self.cutter.split, self.piece
        start = len(piece.arguments) + len(piece.roots)
        of_arguments = ((n, split.batch_dims.get(i)) for n, i in enumerate(piece.arguments))
        found = {n: dim for n, dim in of_arguments if dim is not None}
        entering = enumerate(piece.entering, start=start)
        return found | {n: rows[v].dim for n, v in entering if v in rows}

    def forward(self, *operands: Array) -> list[Array]:
        """Return the activations that leave."""
        arguments, weights, entering, _ = self._taken_apart(operands)
        return self.cutter.forward(self.piece, arguments, weights, entering)

    def both(self, *operands: Array) -> list[Array]:
        """Return activations that leave, cotangents of those that entered, gradients."""
        arguments, weights, entering, cotangents = self._taken_apart(operands)
        piece, values = self.piece, dict(zip(self.piece.entering, entering, strict=True))

        def ahead(weights: list[Array], inner: list[Array]) -> tuple[list[Array], list[Array]]:
            now = {**values, **dict(zip(self.inward, inner, strict=True))}
            outs = self.cutter.forward(piece, arguments, weights, [now[v] for v in piece.entering])
            named = dict(zip(piece.leaving, outs, strict=True))
            return [named[v] for v in (*self.outward, self.loss) if v in named], outs

        _, back, outs = jax.vjp(
            rematerialised(ahead, self.remat),
            weights,
            [values[v] for v in self.inward],
            has_aux=True,
        )
        if self.loss in piece.leaving:
            cotangents.append(jnp.ones(self.loss.aval.shape, self.loss.aval.dtype))
        gradients, backward = back(cotangents)
        return [*outs, *backward, *gradients]

    def _taken_apart(
        self, operands: Sequence[Array]
    ) -> tuple[list[Array], list[Array], list[Array], list[Array]]:
        """Return arguments of the step by position, parameters, what enters, cotangents."""
        piece, rest = self.piece, iter(operands)
        arguments: list[Any] = [None] * len(self.cutter.split.in_avals)
        for i in piece.arguments:
            arguments[i] = next(rest)
        weights = [next(rest) for _ in piece.roots]
        entering = [next(rest) for _ in piece.entering]
        return arguments, weights, entering, list(rest)


def rematerialised(fun: _Function, remat: Remat) -> _Function:
    """Return a function whose backward pass computes again what it does not keep."""
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
    """Return a program whose recomputed values are not held apart from the first ones.

    Forward and backward pass of a stage run as programs of their own: nothing can merge what the
    one computes with what the other computes again, so barriers would only cost copies.
    """
    return merged(
        program, lambda node: node.inputs if node.name == "optimization_barrier" else None
    )


def _once(program: Program, batch_dims: Mapping[int, int]) -> Program:
    """Return a program that makes what does not depend on the batch once.

    Rematerialisation casts each weight a second time; a stage makes such values before its first
    micro-batch, for both passes.
    """
    moving = {program.inputs[n] for n in batch_dims}
    seen: dict[object, tuple[int, ...]] = {}

    def same_as(node: Node) -> tuple[int, ...] | None:
        if not moving.isdisjoint(node.inputs):
            moving.update(node.outputs)
            return None
        # The text of the parameters leaves functions and bodies out: such equations may differ.
        params = node.equation.params
        says_all = not any(bodies(params)) and not any(
            isinstance(value, FunctionType | partial) for value in params.values()
        )
        key = (node.name, equation_detail(node.equation), node.inputs)
        if says_all and key in seen:
            return seen[key]
        seen[key] = node.outputs
        return None

    return merged(program, same_as)


def _leaving(
    step: CutStep, piece: Piece, program: Program, dims: Mapping[int, int], crossed: Crossed
) -> tuple[dict[Var, TimeState], set[Var]]:
    """Find the rows that leave a piece, and what all rows have a part in."""
    # Where rows are does not depend on how many parts they are cut into, if it is more than one;
    # the fewest parts separate most easily (experts take tokens in groups of several rows).
    size = step.batch_size
    fewest = next((d for d in range(2, size + 1) if size % d == 0), 1)
    block = analyzed(
        with_batch_dims(program),
        dims,
        crossed,
        Batch(size, fewest, 1),
        local_statistics=step.local_statistics,
    )
    states = list(zip(piece.leaving, block.outputs, strict=True))
    return (
        {v: s for v, s in states if s.kind == SPLIT},
        {v for v, s in states if is_joined(s, num_bytes(v.aval))},
    )
