"""Half of the layers in another process, bounded and planned while this one has the other half.

What comes back is what would be computed here: it does not matter who did what.
"""

from __future__ import annotations

import pickle
import queue
import subprocess
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

from meshwise.cluster.mesh import LogicalMesh
from meshwise.graph.graph import Graph
from meshwise.inter.cost_table.remote_layers import GraphKey, OtherEnded, Request
from meshwise.inter.cost_table.variant_costs import VariantCosts
from meshwise.intra.options import IntraOptions
from meshwise.pieces.piece import PieceGraph
from meshwise.plan.stage import Remat
from meshwise.system.child_process import ChildProcess, requests
from meshwise.system.collector import collection_paused

_SCRIPT = "from meshwise.inter.cost_table.layer_process import serve; serve()"
# To start a process takes as long as about so many bounds of small layers.
_WORTH = 12


class Ask(NamedTuple):
    """Bounds that are wanted.

    Attributes:
        mesh: The logical mesh.
        remat: What the backward pass computes again.
        num_microbatches: B.
    """

    mesh: LogicalMesh
    remat: Remat
    num_microbatches: int


class _Sent(NamedTuple):
    """What the other process is asked, with the graphs that it has not seen."""

    request: Request
    graphs: dict[GraphKey, PieceGraph]
    classes: tuple[int, ...]
    options: IntraOptions


class SecondProcess:
    """The other process; started when it pays, and not left when the block ends."""

    def __init__(self, costs: VariantCosts) -> None:
        """Nothing is started yet.

        Args:
            costs: Where bounds and plans are computed and kept.
        """
        self._costs = costs
        self._child: ChildProcess | None = None
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._sent: set[GraphKey] = set()
        self._classes: frozenset[int] = frozenset()
        self._num_asked = self._num_answered = 0
        # Answers that nobody has waited for yet, by the number of the request.
        self._early: dict[int, Any] = {}
        self._has_failed = False

    @property
    def process(self) -> subprocess.Popen[bytes] | None:
        """The process, while there is one."""
        return None if self._child is None else self._child.process

    def __enter__(self) -> Self:
        """Nothing more to do."""
        return self

    def __exit__(self, *error: object) -> None:
        """End the process."""
        self._end()

    def _end(self) -> None:
        self._costs.part()
        if self._child is not None:
            self._child.end()
            self._child = None

    def has(self, layer: int) -> bool:
        """Whether a class of layers is planned there."""
        return layer in self._classes

    def bound(self, asks: Sequence[Ask], report: Callable[[str], object]) -> None:
        """Compute bounds that are not known yet, and tell what is done."""
        todo = [ask for ask in dict.fromkeys(asks) if not self._costs.has_bounds(*ask)]
        if not todo or not self._is_there(todo):
            return
        try:
            for ask in todo:
                self._costs.begin_bounds(*ask)
        except OtherEnded:
            # What is still unknown is computed where it is used.
            return
        for n, ask in enumerate(todo, 1):
            sizes = "x".join(map(str, ask.mesh.sizes))
            report(f"bounds on meshes of {sizes}, remat {ask.remat}; {len(todo) - n} more")
            self._costs.bounds(*ask)

    def _is_there(self, asks: Sequence[Ask]) -> bool:
        """Whether there is a process, if need be a new one."""
        costs = self._costs
        if self._child is None and len(asks) >= _WORTH and not self._has_failed:
            if not costs.is_shareable or len(set(costs.source.classes)) < 2:
                return False
            try:
                child = ChildProcess(_SCRIPT)
            except OSError:
                self._has_failed = True
                return False
            try:
                # While it starts.
                classes = self._half(asks[0])
            except BaseException:
                child.end()
                raise
            self._child, self._classes, costs.other = child, classes, self
            threading.Thread(target=_receive, args=(child, self._answers), daemon=True).start()
        return self._child is not None

    def _half(self, ask: Ask) -> frozenset[int]:
        """Classes of layers with about half of the operators.

        The larger half is for the other process: stages are chosen here.
        """
        costs = self._costs
        sizes = {
            c: _num_operators(costs.graph(c, ask.remat, ask.num_microbatches).graph)
            for c in set(costs.source.classes)
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

    def ask(self, request: Request) -> Callable[[], Any]:
        """Begin something; what comes back waits for the answer.

        Raises:
            OtherEnded: the process has ended; so does what comes back.
        """
        if self._child is None:
            raise OtherEnded
        costs = self._costs
        graphs = {key: costs.graph(*key) for key in request.graphs() if key not in self._sent}
        try:
            self._child.send(_Sent(request, graphs, costs.source.classes, costs.options))
        except (OSError, pickle.PicklingError) as error:
            self._fail()
            raise OtherEnded from error
        self._sent.update(graphs)
        self._num_asked += 1
        number = self._num_asked

        def wait() -> Any:
            while number not in self._early:
                self._next()
            return self._early.pop(number)

        return wait

    def _next(self) -> None:
        """Wait for the next answer."""
        found = EOFError() if self._child is None else self._answers.get()
        if isinstance(found, EOFError):
            self._fail()
            raise OtherEnded
        self._num_answered += 1
        self._early[self._num_answered] = found

    def _fail(self) -> None:
        self._end()
        self._has_failed = True


def _num_operators(graph: Graph) -> int:
    return sum(1 + sum(map(_num_operators, op.bodies)) for op in graph.operators)


def _receive(child: ChildProcess, answers: queue.SimpleQueue[Any]) -> None:
    try:
        while True:
            answers.put(child.receive())
    except (OSError, EOFError, ValueError):
        pass
    finally:
        answers.put(EOFError())


class _Known:
    """Layers of which the graphs were sent."""

    def __init__(self, classes: tuple[int, ...]) -> None:
        self.classes = classes
        self.graphs: dict[GraphKey, PieceGraph] = {}

    def graph(
        self, first: int, last: int, num_microbatches: int, remat: Remat = "none"
    ) -> PieceGraph:
        assert first == last
        return self.graphs[first, remat, num_microbatches]

    def crossing_bytes(self, layer: int) -> int:
        raise NotImplementedError


def serve() -> None:
    """Answer requests until nobody asks any more."""
    source: _Known | None = None
    costs: VariantCosts | None = None
    with collection_paused():
        for sent, answer in requests():
            if source is None or costs is None:
                source = _Known(sent.classes)
                costs = VariantCosts(source, sent.options)
            source.graphs.update(sent.graphs)
            answer(sent.request.answer(costs))
