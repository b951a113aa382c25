"""A second process does half of the slow work in Python: bounds of layers, and memory of plans.

The results do not depend on which process computes them.  Where the process cannot be started, or
ends, they are computed here when they are used.
"""

from __future__ import annotations

import pickle
import subprocess
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Self

from meshwise.cluster.mesh import LogicalMesh
from meshwise.graph.graph import Graph
from meshwise.inter.cost_table.layer_networks import LayerNetworks
from meshwise.inter.cost_table.variant import BoundsKey
from meshwise.inter.cost_table.variant_costs import VariantCosts
from meshwise.inter.layer_cost.footprint import Footprint, footprint
from meshwise.inter.layer_cost.layer_network import LayerNetwork, layer_bounds
from meshwise.inter.layer_cost.layer_record import LayerBounds
from meshwise.intra.options import IntraOptions
from meshwise.pieces.piece import PieceGraph
from meshwise.plan.decision import GraphDecision
from meshwise.plan.stage import Remat
from meshwise.system.child_process import ChildProcess, requests
from meshwise.system.collector import collection_paused

_SCRIPT = "from meshwise.inter.cost_table.second_process import serve; serve()"
# To start a process takes as long as about so many bounds of small layers.
_WORTH = 12

# What a graph of a layer is made for: a class of layers, what is computed again, B.
_GraphKey = tuple[int, Remat, int]


class _BoundsRequest(NamedTuple):
    """Bounds of some layers on a mesh, asked of the second process.

    Attributes:
        graphs: The graphs among `keys` that the process does not have yet.
        keys: The layers to bound.
        mesh: Where they run.
        options: How layers are planned.
    """

    graphs: dict[_GraphKey, PieceGraph]
    keys: list[_GraphKey]
    mesh: LogicalMesh
    options: IntraOptions


class _PlansRequest(NamedTuple):
    """What plans of layers hold, asked of the second process.

    Attributes:
        graphs: The graphs of the plans that the process does not have yet.
        plans: Layers and their plans.
        mesh: Where they run.
    """

    graphs: dict[_GraphKey, PieceGraph]
    plans: list[tuple[_GraphKey, GraphDecision]]
    mesh: LogicalMesh


class SecondProcess:
    """The second process; it is started when that pays, and ends with the `with` block."""

    def __init__(self, costs: VariantCosts) -> None:
        """Start nothing yet.

        Args:
            costs: Computes the bounds of this process, and keeps those of both.
        """
        self._costs = costs
        self._child: ChildProcess | None = None
        self._sent: set[_GraphKey] = set()
        self._theirs: frozenset[int] = frozenset()
        self._has_failed = False

    @property
    def process(self) -> subprocess.Popen[bytes] | None:
        """The process, while there is one."""
        return None if self._child is None else self._child.process

    def __enter__(self) -> Self:
        """Plan layers with the process where there is one; return the object itself."""
        self._costs.plan_ahead = self.plan
        return self

    def __exit__(self, *error: object) -> None:
        """End the process."""
        self._costs.plan_ahead = None
        self._end()

    def bound(self, keys: Sequence[BoundsKey], report: Callable[[str], object]) -> None:
        """Compute bounds that are not known yet, if a second process helps with them.

        Args:
            keys: The bounds that are wanted.
            report: Is told of progress.

        Raises:
            TraceError: the step does not separate into so many micro-batches.
        """
        todo = [
            key
            for key in dict.fromkeys(keys)
            if not (self._costs.has_bounds(*key) or self._costs.remembers_bounds(key))
        ]
        if not todo or not self._is_there(todo):
            return
        with self._asking():
            for key in todo:
                self._ask(key)
            for n, key in enumerate(todo, 1):
                sizes = "x".join(map(str, key.mesh.sizes))
                report(f"bounds on meshes of {sizes}, remat {key.remat}; {len(todo) - n} more")
                self._finish(key)

    def plan(self, chosen: Sequence[tuple[LayerNetwork, tuple[int, ...]]]) -> None:
        """Make plans of layers that are not known yet: half here, half in the second process.

        Without that process nothing is made; plans are made when they are used.

        Args:
            chosen: Layers on one mesh, and choices for their classes of nodes.
        """
        todo = [(layer, c) for layer, c in dict.fromkeys(chosen) if not layer.knows(c)]
        theirs = todo[1::2]
        if self._child is None or not theirs:
            return
        keys = [self._costs.graph_key(layer) for layer, _ in theirs]
        plans = [(key, layer.decision(c)) for key, (layer, c) in zip(keys, theirs, strict=True)]
        with self._asking():
            self._child.send(_PlansRequest(self._unsent(keys), plans, theirs[0][0].mesh))
            for layer, choice in todo[::2]:
                layer.facts(choice)
            held: list[Footprint] = self._child.receive()
            for (layer, choice), memory in zip(theirs, held, strict=True):
                layer.keep(choice, memory)

    @contextmanager
    def _asking(self) -> Generator[None]:
        """End the process at an error; do without it if the error is its own."""
        try:
            yield
        except (OSError, EOFError, pickle.PicklingError):
            self._has_failed = True
            self._end()
        except BaseException:
            # Answers that nobody waits for would be taken for later ones.
            self._end()
            raise

    def _end(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None
            self._sent.clear()

    def _is_there(self, keys: Sequence[BoundsKey]) -> bool:
        """Return whether there is a process; start one if that pays."""
        costs = self._costs
        if self._child is None and len(keys) >= _WORTH and not self._has_failed:
            if not costs.is_shareable or len(set(costs.source.classes)) < 2:
                return False
            try:
                self._child = ChildProcess(_SCRIPT)
            except OSError:
                self._has_failed = True
                return False
            try:
                self._theirs = self._larger_half(keys[0])
            except BaseException:
                self._end()
                raise
        return self._child is not None

    def _larger_half(self, key: BoundsKey) -> frozenset[int]:
        """Return classes of layers with a bit more than half of the operators."""
        sizes = {
            c: _num_operators(self._costs.graph(c, key.remat, key.num_microbatches).graph)
            for c in set(self._costs.source.classes)
        }
        here, there = 0, 0
        chosen: set[int] = set()
        for c in sorted(sizes, key=lambda c: (-sizes[c], c)):
            if here < there:
                here += sizes[c]
            else:
                there += sizes[c]
                chosen.add(c)
        return frozenset(chosen)

    def _ask(self, key: BoundsKey) -> None:
        """Send a request for the layers of the second process."""
        assert self._child is not None
        classes = sorted(self._theirs)
        keys: list[_GraphKey] = [(c, key.remat, key.num_microbatches) for c in classes]
        self._child.send(_BoundsRequest(self._unsent(keys), keys, key.mesh, self._costs.options))

    def _unsent(self, keys: Sequence[_GraphKey]) -> dict[_GraphKey, PieceGraph]:
        """Return graphs that the second process does not have yet; it is sent them now."""
        graphs = {k: self._costs.graph(*k) for k in keys if k not in self._sent}
        self._sent.update(graphs)
        return graphs

    def _finish(self, key: BoundsKey) -> None:
        """Bound the layers of this process, and wait for the others."""
        assert self._child is not None
        classes = set(self._costs.source.classes)
        found = {c: self._costs.layer_bounds(c, *key) for c in sorted(classes - self._theirs)}
        received: list[LayerBounds | None] = self._child.receive()
        theirs = dict(zip(sorted(self._theirs), received, strict=True))
        self._costs.record_bounds(key, theirs)
        self._costs.keep_bounds(key, found | theirs)


def _num_operators(graph: Graph) -> int:
    return sum(1 + sum(map(_num_operators, op.bodies)) for op in graph.operators)


def serve() -> None:
    """Answer requests until nobody asks any more."""
    pieces: dict[_GraphKey, PieceGraph] = {}
    networks = LayerNetworks()

    def bounds(key: _GraphKey, request: _BoundsRequest) -> LayerBounds | None:
        network = networks.network(pieces[key], request.mesh, request.options)
        return None if network is None else layer_bounds(network)

    with collection_paused():
        for request, answer in requests():
            pieces.update(request.graphs)
            if isinstance(request, _BoundsRequest):
                answer([bounds(key, request) for key in request.keys])
            else:
                plans = request.plans
                answer([footprint(pieces[key], plan, request.mesh) for key, plan in plans])
