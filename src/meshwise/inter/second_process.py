"""Bounds and plans of layers, computed by this process and another one side by side.

What comes back is what would be computed here: it does not matter who did what.
"""

from __future__ import annotations

import pickle
import queue
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self, TypeAlias

from meshwise.child_process import ChildProcess, requests
from meshwise.cluster.mesh import LogicalMesh
from meshwise.inter.compose import BoolArray
from meshwise.inter.piece import PieceGraph, Remat
from meshwise.inter.variants import RunPlan, Variant, VariantCosts
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

    def is_known(self, costs: VariantCosts) -> bool:
        """Whether there is nothing to do."""
        return costs.has_bounds(*self)

    def compute(self, costs: VariantCosts) -> Any:
        """The bounds."""
        return costs.bounds(*self)

    def learn(self, costs: VariantCosts, found: Any) -> None:
        """Take what the other process computed."""
        costs.learn(*self, found)


class AskRuns(NamedTuple):
    """Costs of runs of layers that are wanted.

    Attributes:
        variant: How they are planned.
        num_microbatches: B.
        wanted: Which runs, (first layer, last layer).
    """

    variant: Variant
    num_microbatches: int
    wanted: BoolArray

    @property
    def remat(self) -> Remat:
        """What the backward pass computes again."""
        return self.variant.remat

    def is_known(self, costs: VariantCosts) -> bool:
        """Whether there is nothing to do."""
        return costs.has_runs(*self)

    def compute(self, costs: VariantCosts) -> Any:
        """The costs."""
        return costs.runs(*self)

    def learn(self, costs: VariantCosts, found: Any) -> None:
        """Take what the other process computed."""
        costs.learn_runs(*self, found)


class AskPlan(NamedTuple):
    """Plans of a run of layers that are wanted.

    Attributes:
        variant: How they are planned.
        num_microbatches: B.
        first: First layer.
        last: Last layer.
    """

    variant: Variant
    num_microbatches: int
    first: int
    last: int


Task: TypeAlias = Ask | AskRuns


def _place(task: Task) -> Ask:
    """The mesh, rematerialisation and number of micro-batches of a task."""
    return (
        task if isinstance(task, Ask) else Ask(task.variant.mesh, task.remat, task.num_microbatches)
    )


class _Request(NamedTuple):
    """What the other process is asked, with the graphs that it has not seen."""

    task: Task | tuple[AskPlan, ...]
    graphs: dict[tuple[int, Remat, int], PieceGraph]
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
        self._sent: set[tuple[int, Remat, int]] = set()
        # Who planned layers for a variant has their plans.
        self._is_theirs: dict[tuple[Variant, int], bool] = {}
        # Who bounded or planned layers on a mesh knows much of what else is asked there.
        self._knows: dict[Ask, bool] = {}
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
        todo = [ask for ask in dict.fromkeys(asks) if not ask.is_known(self._costs)]

        def tell(ask: Task, left: int) -> None:
            assert isinstance(ask, Ask)
            sizes = "x".join(map(str, ask.mesh.sizes))
            report(f"bounds on meshes of {sizes}, remat {ask.remat}; {left} more")

        if self._is_there(len(todo)):
            self._share(todo, tell)

    def plan(self, asks: Sequence[AskRuns]) -> None:
        """Compute costs of runs that are not known yet, where the process is there."""
        together: dict[tuple[Variant, int], AskRuns] = {}
        for ask in asks:
            known = together.get(ask[:2])
            wanted = ask.wanted if known is None else ask.wanted | known.wanted
            together[ask[:2]] = ask._replace(wanted=wanted)
        todo = [ask for ask in together.values() if not ask.is_known(self._costs)]

        def tell(ask: Task, left: int) -> None:
            del ask, left

        # Times are measured here.
        if self._child is not None and self._costs.times is None:
            self._share(todo, tell)

    def _share(self, tasks: Sequence[Task], tell: Callable[[Task, int], None]) -> None:
        """Do tasks here from the first, and there from the last."""
        ours: deque[Task] = deque()
        theirs: deque[Task] = deque()
        free: deque[Task] = deque()
        # Of what either may do, this process takes what it knows, the other one what that knows.
        for task in sorted(tasks, key=lambda task: self._knows.get(_place(task), 0.5)):
            owner = self._owner(task)
            (free if owner is None else theirs if owner else ours).append(task)
        beside: Task | None = None
        while ours or theirs or free or beside is not None:
            if beside is None and (theirs or len(free) + bool(ours) > 1):
                beside = theirs.popleft() if theirs else free.pop()
                if not self._asked(beside):
                    self._fail()
                    return
            elif ours or free:
                task = ours.popleft() if ours else free.popleft()
                tell(task, len(ours) + len(free))
                self._note(task, is_theirs=False)
                task.compute(self._costs)
            if beside is not None and (not (ours or free) or not self._answers.empty()):
                found = self._answers.get()
                if isinstance(found, EOFError):
                    self._fail()
                    return
                self._note(beside, is_theirs=True)
                beside.learn(self._costs, found)
                beside = None

    def _owner(self, task: Task) -> bool | None:
        """Whether it is for the other process, or for this; None for either."""
        if isinstance(task, Ask):
            return None
        return self._is_theirs.get((task.variant, task.num_microbatches))

    def _note(self, task: Task, *, is_theirs: bool) -> None:
        self._knows.setdefault(_place(task), is_theirs)
        if isinstance(task, AskRuns):
            self._is_theirs[task.variant, task.num_microbatches] = is_theirs

    def fetch(self, asks: Sequence[AskPlan]) -> None:
        """Take plans that the other process made; what it did not make is planned here."""
        wanted = tuple(a for a in dict.fromkeys(asks) if self._is_theirs.get(a[:2], False))
        if self._child is None or not wanted:
            return
        if not self._asked(wanted):
            self._fail()
            return
        found = self._answers.get()
        if isinstance(found, EOFError):
            self._fail()
            return
        for ask, plan in zip(wanted, found, strict=True):
            assert isinstance(plan, RunPlan)
            self._costs.learn_plan(*ask, plan)

    def _fail(self) -> None:
        """The process ended: what is still unknown is computed where it is used."""
        self._end()
        self._has_failed = True

    def _is_there(self, count: int) -> bool:
        if not self._costs.is_shareable:
            return False
        if self._child is None and count >= _WORTH and not self._has_failed:
            try:
                child = self._child = ChildProcess(_SCRIPT)
            except OSError:
                self._has_failed = True
                return False
            threading.Thread(target=_receive, args=(child, self._answers), daemon=True).start()
        return self._child is not None and count > 1

    def _asked(self, task: Task | tuple[AskPlan, ...]) -> bool:
        assert self._child is not None
        costs = self._costs
        graphs: dict[tuple[int, Remat, int], PieceGraph] = {}
        if isinstance(task, Ask | AskRuns):
            keys: list[tuple[int, Remat, int]] = [
                (c, task.remat, task.num_microbatches) for c in set(costs.source.classes)
            ]
            graphs = {key: costs.graph(*key) for key in keys if key not in self._sent}
        self._sent.update(graphs)
        try:
            self._child.send(_Request(task, graphs, costs.source.classes, costs.options))
        except (OSError, pickle.PicklingError):
            return False
        return True


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
        task = request.task
        if isinstance(task, Ask | AskRuns):
            answer(task.compute(costs))
        else:
            answer([costs.run_plan(*ask) for ask in task])
