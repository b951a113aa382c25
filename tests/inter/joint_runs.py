"""A run of layers as one integer program: what composed costs are measured against.

All nodes of all layers, costs and bytes added up; where two layers meet, the state that leaves one
and the state that enters the next are one node.  The decisions are those of the composition, only
that all are made at once, with one row for the memory of the run.
"""

from __future__ import annotations

import numpy as np

from meshwise.inter.conditioned import LayerNetwork
from meshwise.intra.problem import PairCost, Problem, Row


class JointRun:
    """The program of a run."""

    def __init__(self, layers: list[LayerNetwork], in_flight: float = 1.0) -> None:
        self._number: dict[tuple[int, int], int] = {}
        self.costs: list[np.ndarray] = []
        self.bytes: list[np.ndarray] = []
        pairs: dict[tuple[int, int], np.ndarray] = {}
        held: dict[tuple[int, int], np.ndarray] = {}
        for k, layer in enumerate(layers):
            for c, cost in enumerate(layer.problem.costs):
                before = layers[k - 1].leaving.node if k and c == layer.entering.node else -1
                if before >= 0:
                    assert layers[k - 1].leaving.layouts == layer.entering.layouts
                    self._number[k, c] = self._number[k - 1, before]
                else:
                    self._number[k, c] = len(self.costs)
                    self.costs.append(np.zeros(len(cost)))
                    self.bytes.append(np.zeros(len(cost)))
                n = self._number[k, c]
                self.costs[n] = self.costs[n] + cost
                passing = in_flight * layer.held.microbatch[c]
                self.bytes[n] = self.bytes[n] + layer.held.resident[c] + passing
            for pair in layer.problem.pairs:
                self._add(pairs, self.costs, k, pair.u, pair.v, pair.cost)
            for (u, v), num_bytes in layer.held.copies.items():
                self._add(held, self.bytes, k, u, v, num_bytes)
            for (u, v), num_bytes in layer.held.kept_copies.items():
                self._add(held, self.bytes, k, u, v, in_flight * num_bytes)
        self.pairs, self.held = pairs, held

    def _add(self, to, nodes, k, u, v, weights) -> None:
        a, b = self._number[k, u], self._number[k, v]
        if a == b:  # a state that goes through a layer
            nodes[a] = nodes[a] + np.diagonal(weights)
            return
        if a > b:
            a, b, weights = b, a, weights.T
        to[a, b] = to[a, b] + weights if (a, b) in to else weights

    def problem(self, limit: float | None = None) -> Problem:
        """The cheapest run, or the cheapest that holds no more than so many bytes."""
        rows = ()
        if limit is not None:
            rows = (
                Row(
                    nodes=tuple(enumerate(self.bytes)),
                    pairs=tuple((u, v, w) for (u, v), w in sorted(self.held.items())),
                    limit=limit,
                    name="memory of the stage",
                ),
            )
        return Problem(
            costs=tuple(self.costs),
            pairs=tuple(PairCost(u=u, v=v, cost=w) for (u, v), w in sorted(self.pairs.items())),
            rows=rows,
        )

    def least_bytes(self) -> Problem:
        """The run that holds least, whatever it costs."""
        costs = [
            np.where(np.isfinite(c), b, np.inf) for c, b in zip(self.costs, self.bytes, strict=True)
        ]
        pairs = {place: np.where(np.isfinite(w), 0.0, np.inf) for place, w in self.pairs.items()}
        for place, w in self.held.items():
            pairs[place] = pairs[place] + w if place in pairs else w
        return Problem(
            costs=tuple(costs),
            pairs=tuple(PairCost(u=u, v=v, cost=w) for (u, v), w in sorted(pairs.items())),
        )
