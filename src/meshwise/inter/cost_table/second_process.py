"""A second process does half of the slow work: bounds of layers, costs of runs, memory of plans.

The results do not depend on which process computes them: of runs of layers it finds out facts for
their records, from which this process composes costs as if it had found them itself.  Where the
process cannot be started, or ends, all is computed here when it is used.
"""

from __future__ import annotations

import pickle
import subprocess
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from meshwise.assignment.solver_time import SolverTime
from meshwise.cluster.mesh import LogicalMesh
from meshwise.graph.graph import Graph
from meshwise.inter.cost_table.layer_networks import LayerNetworks
from meshwise.inter.cost_table.variant import BoundsKey, Variant
from meshwise.inter.cost_table.variant_costs import VariantCosts
from meshwise.inter.layer_cost.footprint import Footprint, footprint
from meshwise.inter.layer_cost.joint_run import JointRun
from meshwise.inter.layer_cost.layer_network import LayerNetwork, layer_bounds
from meshwise.inter.layer_cost.layer_record import LayerBounds, LayerRecord
from meshwise.inter.layer_cost.run_costs import compose
from meshwise.inter.layer_cost.run_within_memory import run_within_memory
from meshwise.inter.layer_cost.state_costs import BytePrice, ConditionedLayer, price_key
from meshwise.intra.options import IntraOptions
from meshwise.kernels.arrays import Bools
from meshwise.pieces.piece import PieceGraph
from meshwise.plan.decision import GraphDecision
from meshwise.plan.stage import Remat
from meshwise.system.child_process import ChildProcess, requests
from meshwise.system.collector import collection_paused

_SCRIPT = "from meshwise.inter.cost_table.second_process import serve; serve()"
# To start a process takes as long as about so many bounds of small layers.
_WORTH = 12
# Variants that are shared with it.
_LEAST_VARIANTS = 2

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


class _RunsRequest(NamedTuple):
    """A question to the second process: the costs of runs of layers.

    Attributes:
        graphs: The graphs among `keys` that the process does not have yet.
        keys: Each layer, in order.
        records: What is known of them.
        variant: How they are planned.
        options: How layers are planned.
        wanted: The runs that matter, (first layer, last layer).
    """

    graphs: dict[_GraphKey, PieceGraph]
    keys: list[_GraphKey]
    records: dict[_GraphKey, LayerRecord]
    variant: Variant
    options: IntraOptions
    wanted: Bools


class _RunRequest(NamedTuple):
    """A question to the second process: the plans of a run within its memory.

    Attributes:
        graphs: The graphs among `keys` that the process does not have yet.
        keys: Each layer of the run, in order.
        records: What is known of them.
        mesh: Where they run.
        options: How layers are planned.
        in_flight: Micro-batches whose activations count.
        limit: Bytes that the run may hold, as its row counts them.
    """

    graphs: dict[_GraphKey, PieceGraph]
    keys: list[_GraphKey]
    records: dict[_GraphKey, LayerRecord]
    mesh: LogicalMesh
    options: IntraOptions
    in_flight: float
    limit: float


@contextmanager
def second_process_of(costs: VariantCosts) -> Generator[SecondProcess]:
    """Yield the second process of costs; inside of another such block it is the same one.

    It keeps the graphs and networks of layers until the outer block ends, and itself with it; an
    inner block that leaves it at work for nobody ends it sooner, and the next one starts another.

    Args:
        costs: Computes what this process does, and keeps what both find out.
    """
    if isinstance(outer := costs.beside, SecondProcess):
        try:
            yield outer
        finally:
            outer.leave()
        return
    costs.beside = beside = SecondProcess(costs)
    try:
        yield beside
    finally:
        costs.beside = None
        beside.end()


class SecondProcess:
    """The second process; it is started when that pays (`second_process_of`)."""

    def __init__(self, costs: VariantCosts) -> None:
        """Start nothing yet.

        Args:
            costs: Computes what this process does, and keeps what both find out.
        """
        self._costs = costs
        self._child: ChildProcess | None = None
        self._sent: set[_GraphKey] = set()
        self._theirs: frozenset[int] = frozenset()
        self._has_failed = False
        # Whether an answer is still to come.
        self._is_busy = False
        # What it looks ahead for.
        self._run: tuple[tuple[LayerNetwork, ...], float] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes] | None:
        """The process, while there is one."""
        return None if self._child is None else self._child.process

    def bound(self, keys: Sequence[BoundsKey], report: Callable[[str], object]) -> None:
        """Compute bounds that are not known yet, if a second process helps with them.

        Args:
            keys: The bounds that are wanted.
            report: Is told of progress.

        Raises:
            TraceError: the step does not separate into so many micro-batches.
        """
        if not self._costs.is_shareable:
            return
        todo = [
            key
            for key in dict.fromkeys(keys)
            if not (self._costs.has_bounds(*key) or self._costs.remembers_bounds(key))
        ]
        if not todo or not self._is_there(is_worth=len(todo) >= _WORTH):
            return
        with self._asking():
            self._theirs = self._theirs or self._larger_half(todo[0])
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
        if self._child is None or self._is_busy or not theirs:
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

    def runs(self, asked: Sequence[tuple[Variant, Bools]], num_microbatches: int) -> None:
        """Find out costs of runs of layers, some here and some in the second process.

        Args:
            asked: Variants, and for each the runs that matter.
            num_microbatches: B.
        """
        costs, wanted = self._costs, dict[Variant, Bools]()
        for variant, some in asked:
            if not costs.has_runs(variant, num_microbatches, some):
                wanted[variant] = some | wanted.get(variant, some)
        todo = list(wanted.items())
        # Where layers are measured this process does it.
        if len(todo) < _LEAST_VARIANTS or not costs.is_shareable or costs.times is not None:
            return
        unknown = [v for v in wanted if not costs.remembers_layers(v, num_microbatches)]
        if not self._is_there(is_worth=len(unknown) >= _LEAST_VARIANTS):
            return
        asking: Variant | None = None
        with self._asking():
            while todo or asking is not None:
                if asking is None:
                    asking, some = todo.pop()
                    self._ask_runs(asking, num_microbatches, some)
                elif todo and not self._has_answered():
                    variant, some = todo.pop(0)
                    costs.runs(variant, num_microbatches, some)
                else:
                    self._finish_runs(asking, num_microbatches)
                    asking = None

    def _ask_runs(self, variant: Variant, count: int, wanted: Bools) -> None:
        """Ask the second process for what the costs of runs follow from."""
        assert self._child is not None
        costs = self._costs
        keys: list[_GraphKey] = [(c, variant.remat, count) for c in costs.source.classes]
        records: dict[_GraphKey, LayerRecord] = {
            (c, variant.remat, count): record for c, record in costs.known(variant, count).items()
        }
        request = _RunsRequest(
            self._unsent(list(dict.fromkeys(keys))), keys, records, variant, costs.options, wanted
        )
        self._child.send(request)
        self._is_busy = True

    def _has_answered(self) -> bool:
        return self._child is not None and self._child.has_answered

    def _finish_runs(self, variant: Variant, count: int) -> None:
        """Wait for what was asked, and remember it."""
        assert self._child is not None
        received: dict[_GraphKey, LayerRecord] = self._child.receive()
        self._is_busy = False
        self._costs.learn(variant, count, {c: found for (c, _, _), found in received.items()})

    def look_ahead(self, layers: Sequence[LayerNetwork], in_flight: float, limit: float) -> None:
        """Let the second process find out what plans of a run within its memory follow from.

        Nothing happens while it still does that for another run, or where records know it.

        Args:
            layers: The layers of the run on their mesh, in order.
            in_flight: Micro-batches whose activations count.
            limit: Bytes that the run may hold, as its row counts them.
        """
        costs = self._costs
        free = price_key(BytePrice(in_flight=in_flight), costs.options.seed)
        is_known = all(free in layer.record.prices for layer in layers)
        if self._is_busy or is_known or not self._is_there(is_worth=True):
            return
        assert self._child is not None
        keys = [costs.graph_key(layer) for layer in layers]
        pairs = zip(keys, layers, strict=True)
        with self._asking():
            self._child.send(
                _RunRequest(
                    graphs=self._unsent(list(dict.fromkeys(keys))),
                    keys=keys,
                    records={key: layer.record.with_in_flight(in_flight) for key, layer in pairs},
                    mesh=layers[0].mesh,
                    options=costs.options,
                    in_flight=in_flight,
                    limit=limit,
                )
            )
            self._is_busy = True
            self._run = tuple(layers), in_flight

    def learn_run(self, layers: Sequence[LayerNetwork], in_flight: float) -> None:
        """Take what the second process found out about a run, if it looked ahead there.

        Args:
            layers: The layers of the run on their mesh, in order.
            in_flight: Micro-batches whose activations count.
        """
        if not self._is_busy or self._run != (tuple(layers), in_flight):
            return
        assert self._child is not None
        with self._asking():
            received: dict[_GraphKey, LayerRecord] = self._child.receive()
            self._is_busy = False
            for layer in layers:
                layer.record.add(received[self._costs.graph_key(layer)])

    @contextmanager
    def _asking(self) -> Generator[None]:
        """End the process at an error; do without it if the error is its own."""
        try:
            yield
        except (OSError, EOFError, pickle.PicklingError):
            self._has_failed = True
            self.end()
        except BaseException:
            # Answers that nobody waits for would be taken for later ones.
            self.end()
            raise

    def leave(self) -> None:
        """End the process if it still works on what nobody waits for."""
        if self._is_busy:
            self.end()

    def end(self) -> None:
        """End the process, if there is one."""
        if self._child is not None:
            self._child.end()
            self._child = None
            self._is_busy = False
            self._sent.clear()

    def _is_there(self, *, is_worth: bool) -> bool:
        """Return whether there is a process; start one if that pays."""
        costs = self._costs
        if self._child is None and is_worth and not self._has_failed:
            if not costs.is_shareable or len(set(costs.source.classes)) < 2:
                return False
            try:
                self._child = ChildProcess(_SCRIPT)
            except OSError:
                self._has_failed = True
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
    served = _Served()
    with collection_paused():
        for request, answer in requests():
            served.pieces.update(request.graphs)
            if isinstance(request, _BoundsRequest):
                answer([served.bounds(key, request) for key in request.keys])
            elif isinstance(request, _RunsRequest):
                answer(served.runs(request))
            elif isinstance(request, _RunRequest):
                answer(served.run(request))
            else:
                pieces, plans = served.pieces, request.plans
                answer([footprint(pieces[key], plan, request.mesh) for key, plan in plans])


class _Served:
    """The state of the second process.

    Attributes:
        pieces: The graphs of layers.
    """

    def __init__(self) -> None:
        self.pieces: dict[_GraphKey, PieceGraph] = {}
        self._made = LayerNetworks()
        self._networks: dict[tuple[_GraphKey, LogicalMesh], LayerNetwork | None] = {}

    def bounds(self, key: _GraphKey, request: _BoundsRequest) -> LayerBounds | None:
        """Return bounds of a layer; None if it has no plan."""
        network = self._made.network(self.pieces[key], request.mesh, request.options)
        return None if network is None else layer_bounds(network)

    def _network(
        self, key: _GraphKey, mesh: LogicalMesh, options: IntraOptions, record: LayerRecord
    ) -> LayerNetwork | None:
        """Return all decisions about a layer; None if it has no plan."""
        at = key, mesh
        if at not in self._networks:
            self._networks[at] = self._made.network(self.pieces[key], mesh, options, record)
        return self._networks[at]

    def runs(self, request: _RunsRequest) -> dict[_GraphKey, LayerRecord]:
        """Return what costs of runs of layers follow from, for each layer that has plans."""
        variant, options = request.variant, request.options
        layers: dict[_GraphKey, ConditionedLayer] = {}
        for key, record in request.records.items():
            network = self._network(key, variant.mesh, options, record)
            if network is None:
                return {}
            network.record.add(record)
            layers[key] = ConditionedLayer(network, variant.price, exact=False, seed=options.seed)
        compose([layers[key] for key in request.keys], request.wanted)
        price = price_key(variant.price, options.seed)
        return {key: layer.layer.record.only(price) for key, layer in layers.items()}

    def run(self, request: _RunRequest) -> dict[_GraphKey, LayerRecord]:
        """Return what plans of a run within its memory follow from, for each of its layers."""
        networks: dict[_GraphKey, LayerNetwork] = {}
        for key, record in request.records.items():
            network = self._network(key, request.mesh, request.options, record)
            # A run that is planned again has plans of all its layers.
            assert network is not None
            network.record.add(record)
            networks[key] = network
        joint = JointRun([networks[key] for key in request.keys], request.in_flight)
        within = run_within_memory(joint, time=SolverTime(), seed=request.options.seed)
        within.cheapest(request.limit)
        in_flight = request.in_flight
        return {key: one.record.with_in_flight(in_flight) for key, one in networks.items()}
