"""Which tensors a compiler sends in buckets.

Compilers merge collectives that do not wait for each other into one, up to some bytes, so that
these pay one latency.  Collectives of gradients do not wait, since only an optimizer reads their
results.  Those of parameters do not wait, since parameters are there before the step.  A tensor
between two dense operators is part of the chain that a step waits for: each of its collectives
pays a latency of its own.

Scalars are left out: of one or two in a step, each is a bucket of its own.  Every layer of a
pipeline has its own programs, so its tensors share buckets with each other only.  The same holds
for the body of a loop or a branch, which compilers keep apart from what is around it.

Source: docs/decisions/0032-merged-collectives-share-latencies.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import NamedTuple

from meshwise.graph.graph import Graph, Operator
from meshwise.graph.structure import PREDICATE


def with_buckets(
    graph: Graph,
    *,
    inputs: Collection[int] = (),
    outputs: Collection[int] = (),
) -> Graph:
    """Return the graph with `sharers` set on its tensors, also in bodies.

    Args:
        graph: The graph.
        inputs: Ids of inputs that dense operators made before this graph runs; they run alone.
        outputs: Ids of outputs that dense operators read after it has run; so do these.
    """
    scope = _scope(graph, set(inputs), set(outputs))
    return _marked(scope, alone={*inputs, *outputs})


class _Scope(NamedTuple):
    """A graph or a body.

    Attributes:
        graph: The graph.
        after: Tensors that follow from a dense operator.
        before: Tensors from which one follows.
    """

    graph: Graph
    after: AbstractSet[int]
    before: AbstractSet[int]

    def bodies(self, op: Operator) -> Iterator[_Scope]:
        """Yield the bodies of an operator."""
        if op.structure is None:
            return
        operands, _ = _slots(op, self.after)
        results, _ = _slots(op, self.before, backwards=True)
        for part, body in zip(op.structure.parts, op.bodies, strict=True):
            made = {t for t, k in zip(body.inputs, part.operands, strict=True) if k in operands}
            read = {t for t, j in zip(body.outputs, part.results, strict=True) if j in results}
            yield _scope(body, made, read)


def _scope(graph: Graph, made: AbstractSet[int], read: AbstractSet[int]) -> _Scope:
    return _Scope(graph, _reached(graph, made), _reached(graph, read, backwards=True))


def _num_gradients(scope: _Scope) -> int:
    """Return the number of operators with which chains of dense operators end, scalars left out."""
    chain = scope.after & scope.before
    found = 0
    for op in scope.graph.operators:
        if op.bodies:
            found += sum(map(_num_gradients, scope.bodies(op)))
        elif _is_dense(op, scope.graph) or not chain.isdisjoint(op.inputs):
            made = [t for t in op.outputs if scope.graph.tensors[t].shape]
            found += bool(made) and scope.before.isdisjoint(made)
    return found


def _num_parameters(scope: _Scope) -> int:
    """Return the number of inputs with which chains begin, scalars and integers left out."""
    begin = (t for t in scope.graph.inputs if t in scope.before and t not in scope.after)
    tensors = (scope.graph.tensors[t] for t in begin)
    return sum(bool(t.shape) and "float" in t.dtype and not t.generated for t in tensors)


def _marked(scope: _Scope, alone: AbstractSet[int] = frozenset()) -> Graph:
    # A forward body has no gradients, and a backward body may read no parameters.
    found = max(_num_gradients(scope), _num_parameters(scope))
    sharers = found if found > 1 else 0
    alone = (scope.after & scope.before) | alone
    return replace(
        scope.graph,
        tensors=tuple(
            replace(
                tensor,
                sharers=0 if not tensor.shape or tensor.generated or t in alone else sharers,
            )
            for t, tensor in enumerate(scope.graph.tensors)
        ),
        operators=tuple(
            replace(op, bodies=tuple(_marked(body) for body in scope.bodies(op)))
            if op.bodies
            else op
            for op in scope.graph.operators
        ),
    )


def _is_dense(op: Operator, graph: Graph) -> bool:
    """Whether it multiplies arrays; a product that makes a number, as a norm does, does not."""
    return op.heavy and any(graph.tensors[t].shape for t in op.outputs)


def _reached(graph: Graph, start: AbstractSet[int], *, backwards: bool = False) -> set[int]:
    """Return the tensors that follow from a dense operator or from `start`.

    Args:
        graph: The graph.
        start: Ids of tensors.
        backwards: Return those from which a dense operator or one of `start` follows.
    """
    found = set(start)
    for op in reversed(graph.operators) if backwards else graph.operators:
        before, after = (op.outputs, op.inputs) if backwards else (op.inputs, op.outputs)
        if op.bodies:
            found.update(after[k] for k in _slots(op, found, backwards=backwards)[1])
        elif _is_dense(op, graph) or not found.isdisjoint(before):
            found.update(after)
    return found


def _slots(
    op: Operator, found: AbstractSet[int], *, backwards: bool = False
) -> tuple[set[int], set[int]]:
    """Return the positions of operands that are among `found` in any trip, and of results.

    Args:
        op: An operator with bodies.
        found: Ids of tensors that were reached before it.
        backwards: Whether results come first, and operands follow.
    """
    assert op.structure is not None
    carries = [(j, k) if backwards else (k, j) for k, j in op.structure.carries]
    first = {k for k, t in enumerate(op.outputs if backwards else op.inputs) if t in found}
    while True:
        second = {j for k, j in carries if k in first}
        for part, body in zip(op.structure.parts, op.bodies, strict=True):
            operands = list(zip(body.inputs, part.operands, strict=True))
            results = list(zip(body.outputs, part.results, strict=True))
            before, after = (results, operands) if backwards else (operands, results)
            inner = _reached(body, {t for t, k in before if k in first}, backwards=backwards)
            # The predicate of a `while` is no result.
            second.update(j for t, j in after if t in inner and j != PREDICATE)
        more = {k for k, j in carries if j in second} - first
        if not more:
            return first, second
        first |= more
