"""Bounds of layers, computed by this process and another one side by side.

What comes back is what would be computed here: it does not matter who did what.
"""

from __future__ import annotations

import pickle
import queue
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

from meshwise.child_process import ChildProcess, requests
from meshwise.cluster.mesh import LogicalMesh
from meshwise.inter.piece import PieceGraph, Remat
from meshwise.inter.variants import RunBounds, VariantCosts
from meshwise.intra.options import IntraOptions

_SCRIPT = "from meshwise.inter.second_process import serve; serve()"
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


class _Request(NamedTuple):
    """What the other process is asked, with the graphs that it has not seen."""

    ask: Ask
    graphs: dict[tuple[int, Remat, int], PieceGraph]
    classes: tuple[int, ...]
    options: IntraOptions


class SecondProcess:
    """The other process; started when it pays, and not left when the block ends."""

    def __init__(self, costs: VariantCosts) -> None:
        """Nothing is started yet.

        Args:
            costs: Where bounds are computed and kept.
        """
        self._costs = costs
        self._child: ChildProcess | None = None
        self._answers: queue.SimpleQueue[RunBounds | EOFError | None] = queue.SimpleQueue()
        self._sent: set[tuple[int, Remat, int]] = set()
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
        if self._child is not None:
            self._child.end()
            self._child = None

    def bound(self, asks: Sequence[Ask], report: Callable[[str], object]) -> None:
        """Compute bounds that are not known yet, and tell what is done."""
        costs = self._costs
        todo = deque(ask for ask in dict.fromkeys(asks) if not costs.has_bounds(*ask))
        if not costs.is_shareable or not self._is_there(len(todo)):
            return
        beside: Ask | None = None
        while todo or beside is not None:
            if beside is None and len(todo) > 1:
                beside = todo.pop()
                if not self._asked(beside):
                    self._fail()
                    return
            elif todo:
                ask = todo.popleft()
                sizes = "x".join(map(str, ask.mesh.sizes))
                report(f"bounds on meshes of {sizes}, remat {ask.remat}; {len(todo)} more")
                costs.bounds(*ask)
            if beside is not None and (not todo or not self._answers.empty()):
                found = self._answers.get()
                if isinstance(found, EOFError):
                    self._fail()
                    return
                costs.learn(*beside, found)
                beside = None

    def _fail(self) -> None:
        """The process ended: what is still unknown is computed where it is used."""
        self._end()
        self._has_failed = True

    def _is_there(self, count: int) -> bool:
        if self._child is None and count >= _WORTH and not self._has_failed:
            try:
                child = self._child = ChildProcess(_SCRIPT)
            except OSError:
                self._has_failed = True
                return False
            threading.Thread(target=_receive, args=(child, self._answers), daemon=True).start()
        return self._child is not None and count > 1

    def _asked(self, ask: Ask) -> bool:
        assert self._child is not None
        costs = self._costs
        keys: list[tuple[int, Remat, int]] = [
            (c, ask.remat, ask.num_microbatches) for c in set(costs.source.classes)
        ]
        graphs = {key: costs.graph(*key) for key in keys if key not in self._sent}
        self._sent.update(graphs)
        try:
            self._child.send(_Request(ask, graphs, costs.source.classes, costs.options))
        except (OSError, pickle.PicklingError):
            return False
        return True


def _receive(child: ChildProcess, answers: queue.SimpleQueue[RunBounds | EOFError | None]) -> None:
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
        self.graphs: dict[tuple[int, Remat, int], PieceGraph] = {}

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
    for request, answer in requests():
        if source is None or costs is None:
            source = _Known(request.classes)
            costs = VariantCosts(source, request.options)
        source.graphs.update(request.graphs)
        answer(costs.bounds(*request.ask))
