"""Which tensors a compiler sends in buckets.

Compilers merge collectives that do not wait for each other into one, up to some bytes, so that
they pay one latency.  Those of gradients and parameters do not wait: only optimizers read the
former, only what is there before the step makes the latter.  A tensor between two dense operators
is part of the chain that a step waits for, and each of its collectives pays a latency of its own.

Scalars are left out: of one or two in a step, each is a bucket of its own.  Every layer of a
pipeline has its own programs, so its tensors share buckets with each other only.  So do those of
the body of a loop or a branch, which compilers keep apart from what is around it.

Source: docs/decisions/0032-merged-collectives-share-latencies.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import NamedTuple

from meshwise.graph.graph import Graph, Operator


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
    scope = _Scope(graph, _following(graph, set(inputs)), _leading(graph, set(outputs)))
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
        operands, _ = _slots_following(op, self.after)
        _, results = _slots_leading(op, self.before)
        for part, body in zip(op.structure.parts, op.bodies, strict=True):
            made = {t for t, k in zip(body.inputs, part.operands, strict=True) if k in operands}
            read = {t for t, j in zip(body.outputs, part.results, strict=True) if j in results}
            yield _Scope(body, _following(body, made), _leading(body, read))


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


def _following(graph: Graph, made: AbstractSet[int]) -> set[int]:
    """Return the tensors that follow from a dense operator or from `made`."""
    found = set(made)
    for op in graph.operators:
        if op.bodies:
            found.update(op.outputs[j] for j in _slots_following(op, found)[1])
        elif _is_dense(op, graph) or not found.isdisjoint(op.inputs):
            found.update(op.outputs)
    return found


def _leading(graph: Graph, read: AbstractSet[int]) -> set[int]:
    """Return the tensors from which a dense operator or one of `read` follows."""
    found = set(read)
    for op in reversed(graph.operators):
        if op.bodies:
            found.update(op.inputs[k] for k in _slots_leading(op, found)[0])
        elif _is_dense(op, graph) or not found.isdisjoint(op.outputs):
            found.update(op.inputs)
    return found


def _slots_following(op: Operator, after: AbstractSet[int]) -> tuple[set[int], set[int]]:
    """Return operands and results (positions) that follow, in any trip."""
    assert op.structure is not None
    operands = {k for k, t in enumerate(op.inputs) if t in after}
    while True:
        results = {j for k, j in op.structure.carries if k in operands}
        for part, body in zip(op.structure.parts, op.bodies, strict=True):
            given = {t for t, k in zip(body.inputs, part.operands, strict=True) if k in operands}
            found = _following(body, given)
            made = zip(body.outputs, part.results, strict=True)
            results.update(j for t, j in made if t in found and j >= 0)
        more = {k for k, j in op.structure.carries if j in results} - operands
        if not more:
            return operands, results
        operands |= more


def _slots_leading(op: Operator, before: AbstractSet[int]) -> tuple[set[int], set[int]]:
    """Return operands and results (positions) that lead to a dense operator, in any trip."""
    assert op.structure is not None
    results = {j for j, t in enumerate(op.outputs) if t in before}
    while True:
        operands = {k for k, j in op.structure.carries if j in results}
        for part, body in zip(op.structure.parts, op.bodies, strict=True):
            read = {t for t, j in zip(body.outputs, part.results, strict=True) if j in results}
            found = _leading(body, read)
            taken = zip(body.inputs, part.operands, strict=True)
            operands.update(k for t, k in taken if t in found)
        more = {j for k, j in op.structure.carries if k in operands} - results
        if not more:
            return operands, results
        results |= more
