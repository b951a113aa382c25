"""Indexing by position: `x[jnp.arange(n), y]` becomes a lookup with a batch dim.

JAX traces it as a gather whose index has a column that counts rows.  The column is found by
evaluating it (it depends on no argument); the equation is then rewritten so that the rows are a
parallel loop, in space and in time.  The same for the scatter-add of its gradient.

Source: docs/decisions/0002, rule 9.
"""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
from jax import core, lax

from meshwise.rules.arange_index import batching_form
from meshwise.rules.primitive import Equation, rebind
from meshwise.trace.program import Node, Program

_INDEXED = ("gather", "scatter", "scatter-add", "scatter-mul", "scatter-min", "scatter-max")
_TRANSPARENT = ("optimization_barrier", "copy", "stop_gradient")


class _Rewriter:
    """Builds the rewritten program; lives only inside `with_batch_dims`."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.avals = list(program.avals)
        self.producer = {out: node for node in program.nodes for out in node.outputs}
        self.known: dict[int, np.ndarray | None] = {}

    def run(self) -> Program:
        nodes: list[Node] = []
        for node in self.program.nodes:
            if node.bodies:
                node = replace(node, bodies=tuple(map(with_batch_dims, node.bodies)))
            nodes += self.rewritten(node) if node.name in _INDEXED else [node]
        return replace(self.program, avals=tuple(self.avals), nodes=tuple(nodes))

    def rewritten(self, node: Node) -> list[Node]:
        pieces = self.columns(node.inputs[1])
        if pieces is None:
            return [node]
        rank = len(self.avals[node.inputs[1]].shape)
        form = batching_form(node.equation, [self.counts_along(i, rank) for i in pieces])
        if form is None:
            return [node]
        added: list[Node] = []
        kept = [pieces[column] for column in form.keep]
        index = kept[0] if len(kept) == 1 else self.concatenated(kept, rank - 1, node, added)
        inputs = (node.inputs[0], index, *node.inputs[2:])
        equation = replace(
            node.equation,
            params=form.params,
            in_avals=tuple(self.avals[i] for i in inputs),
            constants=tuple(self.program.constants.get(i) for i in inputs),
        )
        return [*added, replace(node, equation=equation, inputs=inputs)]

    def columns(self, ident: int) -> list[int] | None:
        """Ids of the index columns, each of width 1; None if they are not seen."""
        node = self.producer.get(ident)
        while node is not None and node.name in _TRANSPARENT:
            node = self.producer.get(node.inputs[0])
        if node is None or node.name != "concatenate":
            return None
        last = len(self.avals[ident].shape) - 1
        pieces = list(node.inputs)
        if node.equation.params["dimension"] != last:
            return None
        return pieces if all(self.avals[i].shape[last] == 1 for i in pieces) else None

    def counts_along(self, ident: int, rank: int) -> int | None:
        """Return the dim along which a column equals 0, 1, 2, ...; None if there is none."""
        value = self.evaluated(ident)
        if value is None:
            return None
        for dim in range(rank - 1):
            shape = [1] * rank
            shape[dim] = value.shape[dim]
            if np.array_equal(
                value, np.broadcast_to(np.arange(value.shape[dim]).reshape(shape), value.shape)
            ):
                return dim
        return None

    def evaluated(self, ident: int) -> np.ndarray | None:
        """Return the value of what depends on no argument, else None."""
        if ident in self.program.constants:
            return np.asarray(self.program.constants[ident])
        if ident not in self.known:
            self.known[ident] = self._evaluate(ident)
        return self.known[ident]

    def _evaluate(self, ident: int) -> np.ndarray | None:
        node = self.producer.get(ident)
        if node is None or node.bodies:
            return None
        found = (self.evaluated(i) for i in node.inputs)
        operands = [value for value in found if value is not None]
        if len(operands) < len(node.inputs):
            return None
        with jax.ensure_compile_time_eval():
            results = rebind(node.equation, operands)
        return np.asarray(results[node.outputs.index(ident)])

    def concatenated(self, kept: list[int], dim: int, like: Node, added: list[Node]) -> int:
        """Return a new value: the columns that remain."""
        avals = tuple(self.avals[i] for i in kept)
        shape = (*avals[0].shape[:dim], len(kept))
        aval = core.ShapedArray(shape, avals[0].dtype)
        self.avals.append(aval)
        ident = len(self.avals) - 1
        constants = tuple(self.program.constants.get(i) for i in kept)
        equation = Equation(lax.concatenate_p, {"dimension": dim}, avals, (aval,), constants)
        added.append(Node(equation, tuple(kept), (ident,), like.source))
        return ident


def with_batch_dims(program: Program) -> Program:
    """Return the program with every lookup by position as a lookup with a batch dim."""
    if not any(node.bodies or node.name in _INDEXED for node in program.nodes):
        return program
    return without_dead_code(_Rewriter(program).run())


def without_dead_code(program: Program) -> Program:
    """Return the program without equations that no result needs and that have no effect."""
    needed = set(program.outputs)
    kept: list[Node] = []
    for node in reversed(program.nodes):
        if node.has_effect or any(out in needed for out in node.outputs):
            kept.append(node)
            needed.update(node.inputs)
    return replace(program, nodes=tuple(reversed(kept)))
