"""A run of layers as one integer program: all decisions of all layers at once.

All nodes of all layers, costs and bytes added up; where two layers meet, the state that leaves one
and the state that enters the next are one node.  What a stage gathers of its neighbours comes on
top at its two ends.  The memory of the run is one row:

    sum over layers of  resident + in_flight * microbatch  <=  limit.

Source: Alpa eq. 1 on the layers of a stage; docs/decisions/0011.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from meshwise.assignment.problem import Problem, Sums
from meshwise.assignment.solver_time import SolverTime
from meshwise.inter.layer_cost.layer_network import LayerNetwork
from meshwise.inter.layer_cost.looking_threads import LookingThreads
from meshwise.inter.layer_cost.run_costs import cheapest_states, gathers
from meshwise.inter.layer_cost.state_costs import BytePrice, ConditionedLayer
from meshwise.kernels.arrays import Floats

# Bounds are raised in so many rounds; then the chain that looks cheapest is planned, and taken if
# it is above what is proved by no more than this part.
_MOST_ROUNDS = 24
_NEAR = 0.01


class JointRun:
    """The program of a run.

    Attributes:
        layers: Of the run, on one mesh.
        in_flight: Micro-batches whose activations count.
    """

    def __init__(self, layers: Sequence[LayerNetwork], in_flight: float = 1.0) -> None:
        """Add up.

        Args:
            layers: In order; each leaves in the states in which the next one enters.
            in_flight: Micro-batches whose activations count.
        """
        self.layers, self.in_flight = tuple(layers), in_flight
        self._number: dict[tuple[int, int], int] = {}
        self._costs, self._bytes = Sums(), Sums()
        for k in range(len(self.layers)):
            self._add_nodes(k)
            self._add_pairs(k)
        self._add_gathers()

    def _add_nodes(self, k: int) -> None:
        layer, before = self.layers[k], self.layers[k - 1] if k else None
        for c, cost in enumerate(layer.problem.costs):
            if before is not None and c == layer.entering.node and before.leaving.node >= 0:
                assert before.leaving.layouts == layer.entering.layouts
                self._number[k, c] = self._number[k - 1, before.leaving.node]
            else:
                self._number[k, c] = len(self._costs.nodes)
            n = self._number[k, c]
            self._costs.add(n, cost)
            self._bytes.add(n, layer.held.resident[c])
            self._bytes.add(n, self.in_flight * layer.held.microbatch[c])

    def _add_pairs(self, k: int) -> None:
        layer = self.layers[k]
        for pair in layer.problem.pairs:
            self._add(self._costs, (k, pair.u, pair.v), pair.cost)
        for (u, v), num_bytes in layer.held.copies.items():
            self._add(self._bytes, (k, u, v), num_bytes)
        for (u, v), num_bytes in layer.held.kept_copies.items():
            self._add(self._bytes, (k, u, v), self.in_flight * num_bytes)

    def _add(self, to: Sums, at: tuple[int, int, int], values: Floats) -> None:
        k, u, v = at
        # They are one node where a state goes through a layer.
        to.add_pair(self._number[k, u], self._number[k, v], values)

    def _add_gathers(self) -> None:
        first, last = self.layers[0], self.layers[-1]
        ends = (
            (0, first.entering.node, first.arriving_s, first),
            (len(self.layers) - 1, last.leaving.node, last.returning_s, last),
        )
        for k, node, seconds, layer in ends:
            if node >= 0:
                self._costs.add(self._number[k, node], layer.piece.num_microbatches * seconds)

    def problem(self, limit: float | None = None) -> Problem:
        """The cheapest run, or the cheapest that holds no more than so many bytes."""
        rows = () if limit is None else (self._bytes.row(limit, "memory of the stage"),)
        return self._costs.problem(rows)

    def composed(
        self, price: float, *, time: SolverTime | None = None, seed: int = 0
    ) -> tuple[tuple[int, ...], float] | None:
        """Plans of the layers at a price of memory as a choice, and a bound; None without one.

        Args:
            price: Seconds of a step a byte.
            time: What the solver may take for all plans; None: as long as counted work lasts.
            seed: Of the solver.
        """
        of_price = BytePrice(seconds_per_byte=price, in_flight=self.in_flight)
        known = {
            layer: ConditionedLayer(layer, of_price, exact=False, time=time, seed=seed)
            for layer in self.layers
        }
        run = [known[layer] for layer in self.layers]
        with LookingThreads() as threads:
            states = self._near_cheapest(run, threads)
        if states is None:
            return None
        places = zip(run, itertools.pairwise(states), strict=True)
        choice = self.joined([layer.choice(*place) for layer, place in places])
        return choice, self._proved(run)

    def _near_cheapest(
        self, run: Sequence[ConditionedLayer], threads: LookingThreads
    ) -> tuple[int, ...] | None:
        """States of the cheapest chain, or of one near to it; None if there is no chain."""
        for number in itertools.count(1):
            states = cheapest_states(run, 0, len(run) - 1)
            places = list(zip(run, itertools.pairwise(states), strict=True))
            if not all(math.isfinite(layer.bound_s[place]) for layer, place in places):
                return None
            todo = {layer: place for layer, place in places if not layer.is_exact[place]}
            if not todo:
                return states
            threads.sharpen(list(todo.items()))
            if number <= _MOST_ROUNDS:
                continue
            threads.sharpen(list(todo.items()))
            if not all(
                layer.is_exact[place] and math.isfinite(layer.bound_s[place])
                for layer, place in places
            ):
                continue
            cost = sum(float(layer.bound_s[place]) for layer, place in places)
            cost += run[0].layer.piece.num_microbatches * sum(gathers(run, 0, -1, states))
            if cost <= (1 + _NEAR) * self._proved(run):
                return states
        return None

    def _proved(self, run: Sequence[ConditionedLayer]) -> float:
        """No choice costs less at the price of these plans."""
        first, last = self.layers[0], self.layers[-1]
        count = first.piece.num_microbatches
        total = count * first.arriving_s
        for layer in run:
            total = (total[:, None] + layer.proved_s).min(axis=0)
        return float((total + count * last.returning_s).min())

    def of_layer(self, k: int, choice: Sequence[int]) -> tuple[int, ...]:
        """A choice of the run as one of a layer, for each class of its nodes."""
        count = len(self.layers[k].problem.costs)
        return tuple(choice[self._number[k, c]] for c in range(count))

    def joined(self, of_layers: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """A choice of the run from those of its layers, which agree where they meet."""
        choice = [0] * len(self._costs.nodes)
        for k, own in enumerate(of_layers):
            for c, chosen in enumerate(own):
                choice[self._number[k, c]] = chosen
        return tuple(choice)

    def states(self, choice: Sequence[int]) -> tuple[int, ...]:
        """The states of the cuts: before each layer, and after the last."""
        last = len(self.layers) - 1
        ends = [(k, layer.entering.node) for k, layer in enumerate(self.layers)]
        ends.append((last, self.layers[last].leaving.node))
        return tuple(choice[self._number[k, n]] if n >= 0 else 0 for k, n in ends)
