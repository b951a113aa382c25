"""State that comes from the memory of the host while a step runs, and goes back to it.

A compiler would copy all of it first, and hold it through the whole step.  So what comes passes one
barrier with the gradients that it waits for and with new state that goes back before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import jax
from jax import Array, lax

from meshwise.graph.graph import Graph
from meshwise.graph.layout import Layout
from meshwise.plan.decision import GraphDecision, Use
from meshwise.plan.offload import host_order
from meshwise.spmd.order import Order

# Gives a tensor as one use wants it.
Operand = Callable[[int, Use], Array]


class FromHost:
    """What lies in the memory of the host, while a program is traced.

    Attributes:
        operators: The positions of the operators, in the order in which they run.
    """

    def __init__(
        self, graph: Graph, decision: GraphDecision, tiles: Sequence[Array], order: Order
    ) -> None:
        """Begin.

        Args:
            graph: The graph.
            decision: Its decision.
            tiles: The tiles of its inputs.
            order: What each value waits for.
        """
        self.operators, groups = host_order(graph, decision.in_host)
        self._graph, self._decision, self._order = graph, decision, order
        self._tiles = {graph.inputs[i]: (decision.inputs[i], tiles[i]) for i in decision.in_host}
        self._groups = {group.time: group for group in groups}
        # Operands that have passed a barrier, by operator and place, and results that have.
        self._held: dict[tuple[int, int], Array] = {}
        self._gone: dict[int, Array] = {}

    def before(self, position: int, use: Operand) -> Iterator[tuple[int, Layout, Array]]:
        """Bring what comes before an operator.

        Args:
            position: The operator.
            use: Gives a tensor as one use wants it.

        Yields:
            The tensors with their layouts and tiles.
        """
        if position not in self._groups:
            return
        group = self._groups[position]
        outputs = self._graph.outputs, self._decision.outputs
        given = [
            *(self._tiles[t][1] for t in group.inputs),
            *(self.operand(*place, use) for place in group.gradients),
            *(use(outputs[0][j], outputs[1][j]) for j in group.results),
        ]
        passed = iter(self._derived(lax.optimization_barrier(given), given))
        for t in group.inputs:
            here = jax.device_put(next(passed), jax.memory.Space.Device)
            self._order.derive([here], given)
            yield t, self._tiles[t][0], here
        self._held |= {place: next(passed) for place in group.gradients}
        self._gone |= {j: next(passed) for j in group.results}

    def operand(self, position: int, k: int, use: Operand) -> Array:
        """Return an operand of an operator.

        Args:
            position: The operator.
            k: Which operand.
            use: Gives a tensor as one use wants it.
        """
        if (position, k) in self._held:
            return self._held[position, k]
        operator, chosen = self._graph.operators[position], self._decision.operators[position]
        return use(operator.inputs[k], chosen.uses[k])

    def back(self, results: Sequence[Array]) -> list[Array]:
        """Return the results of the program, new state where the old lay."""
        there = {j for i, j in self._graph.aliases if i in self._decision.in_host}
        return [
            jax.device_put(self._gone.get(j, value), jax.memory.Space.Host) if j in there else value
            for j, value in enumerate(results)
        ]

    def _derived(self, passed: Sequence[Array], given: Sequence[Array]) -> Sequence[Array]:
        self._order.derive(passed, given)
        return passed
