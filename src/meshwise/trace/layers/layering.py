"""A step cut into layers at given places: graphs of all runs of layers, equal ones made once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshwise.errors import TraceError
from meshwise.jax_compat.jaxprs import Eqn, Var, bodies
from meshwise.pieces.neighbours import CrossingNames
from meshwise.pieces.piece import PieceGraph
from meshwise.plan.stage import Remat
from meshwise.program.names import Activation
from meshwise.trace.layers.chain import Chain, num_bytes
from meshwise.trace.layers.cut import Cutter, Piece
from meshwise.trace.layers.equal import signature
from meshwise.trace.layers.joint import CutStep, Joint, join
from meshwise.trace.layers.layer_sums import with_sums_by_layer
from meshwise.trace.layers.planned import (
    PieceProgram,
    arguments_of,
    crossing_names,
    piece_program,
)
from meshwise.trace.layers.split import SplitStep
from meshwise.trace.layers.stacks.unstack import Unstacked
from meshwise.trace.layers.update import Update
from meshwise.trace.time.state import TimeState

# What is planned is compiled next, but a search goes over more programs than need to be kept.
_KEPT_PROGRAMS = 32


class Layering:
    """Layers of one step.

    Attributes:
        ranges: First and last link of each layer.
        batch_size: Rows of the whole batch.
        local_statistics: Whether what does not separate into micro-batches becomes a statistic of
            each micro-batch alone.
        classes: For each layer the first one that is equal to it.
        ends: How the user's step and this one on single layers go together, where that is known.
    """

    def __init__(
        self,
        split: SplitStep,
        chain: Chain,
        ranges: Sequence[tuple[int, int]],
        batch_size: int,
        *,
        local_statistics: bool = False,
        ends: Unstacked | None = None,
    ) -> None:
        self.ends = ends
        self.ranges = tuple(ranges)
        self.batch_size = batch_size
        self.local_statistics = local_statistics
        _check_value(split, chain)
        cutter = Cutter(split, chain)
        readers: list[list[int]] = [[] for _ in range(split.num_roots)]
        for k, (first, last) in enumerate(self.ranges):
            for r in cutter.piece(first, last).roots:
                readers[r].append(k)
        self.split = with_sums_by_layer(split, Update(split, readers).label)
        self.update = Update(self.split, readers)
        self.cutter = Cutter(self.split, chain)
        self._step = CutStep(
            cutter=self.cutter, batch_size=batch_size, local_statistics=local_statistics
        )
        self.classes = self._classes()
        self._crossing: dict[int, int] = {}
        self._rows: dict[Var, TimeState] = {}
        self._joined: set[Var] = set()
        self._joints: dict[tuple[int, int, Remat], Joint] = {}
        self._programs: dict[tuple[int, int, int, Remat], PieceProgram] = {}

    def _classes(self) -> tuple[int, ...]:
        """For each layer the first one that is equal to it."""
        first: dict[object, int] = {}
        return tuple(
            first.setdefault(
                (
                    signature(self.cutter, self.piece(k, k), self.update, self.update.share(k, k)),
                    self._adjacency(k),
                ),
                k,
            )
            for k in range(len(self.ranges))
        )

    def _adjacency(self, k: int) -> tuple[bool, ...]:
        """Return which activations that cross the cuts of a layer go no further than one layer."""
        piece, adjacent = self.piece(k, k), self.adjacent(k, k)
        return tuple(v in adjacent for v in (*piece.entering, *piece.leaving))

    def piece(self, first: int, last: int) -> Piece:
        """Return the layers `first` to `last`, both included."""
        return self.cutter.piece(self.ranges[first][0], self.ranges[last][1])

    def adjacent(self, first: int, last: int) -> frozenset[Var]:
        """Variables that come from the layer before `first` or go to the one after `last`."""
        piece, cut = self.piece(first, last), self.cutter
        found: set[Var] = set()
        if first:
            start = self.ranges[first - 1][0]
            found.update(v for v in piece.entering if cut.chain.maker[v] >= start)
        if last + 1 < len(self.ranges):
            low, high = self.ranges[last + 1]
            read = {v for k in range(low, high + 1) for _, v in cut.chain.reads[k]}
            found.update(v for v in piece.leaving if v in read)
        return frozenset(found)

    def argument_names(self, layer: int) -> list[str]:
        """Names of the step's arguments that the graph of a layer takes, in its order."""
        state, others = arguments_of(
            self.cutter, self.piece(layer, layer), self.update.share(layer, layer)
        )
        return [self.split.names[a.number] for a in (*state, *others)]

    def activations(self, layer: int) -> list[tuple[str, tuple[int, ...]]]:
        """Names that `jax.ad_checkpoint.checkpoint_name` gave in a layer, and shapes."""
        return list(_named(self.piece(layer, layer).equations))

    def tied_names(self) -> tuple[str, ...]:
        """Names of parameters that several layers read."""
        names = self.split.names
        shared = [r for r, layers in enumerate(self.update.readers) if len(layers) > 1]
        at = [self.cutter.position.get(self.split.roots[r], -1) for r in shared]
        return tuple(
            names[i] if i >= 0 else f"parameter {r}" for r, i in zip(shared, at, strict=True)
        )

    def state_names(self, layer: int) -> tuple[str, ...]:
        """Names of what a layer's update overwrites, in the order of `PieceGraph.state`.

        The graph of a layer has the names of the first layer that is equal to it.
        """
        return tuple(self.split.names[i] for i in self.update.share(layer, layer).state)

    def crossing_names(self, layer: int) -> CrossingNames:
        """Return the activations that cross the cuts of a layer."""
        first = self.classes[layer]
        mine, equal = self.piece(layer, layer), self.piece(first, first)
        ours = map(Activation, (*mine.entering, *mine.leaving))
        theirs = map(Activation, (*equal.entering, *equal.leaving))
        return crossing_names(self.joint(first, first)).renamed(
            dict(zip(theirs, ours, strict=True))
        )

    def separates(self, num_microbatches: int) -> bool:
        """Return whether all layers run in so many micro-batches."""
        try:
            for c in set(self.classes):
                self.graph(c, c, num_microbatches)
        except TraceError:
            return False
        return True

    def crossing_bytes(self, layer: int) -> int:
        """Bytes, for the whole batch, of the activations that cross the cut after a layer."""
        if layer not in self._crossing:
            last, cut = self.ranges[layer][1], self.cutter
            self._crossing[layer] = sum(
                num_bytes(v.aval)
                for v, made in cut.chain.maker.items()
                if made <= last and cut.is_read_after(v, last)
            )
        return self._crossing[layer]

    def joint(self, first: int, last: int, remat: Remat = "none") -> Joint:
        """Return the same, differentiated."""
        key = (first, last, remat)
        if key not in self._joints:
            piece = self.piece(first, last)
            for v in piece.entering:
                if v not in self._rows and v not in self._joined:
                    self._find_rows(first - 1)
            joint = join(self._step, piece, self._rows, self._joined, remat)
            self._rows.update(joint.rows)
            self._joined.update(joint.joined)
            self._joints[key] = joint
        return self._joints[key]

    def _find_rows(self, last: int) -> None:
        """Find the batch dims of what leaves the layers up to `last`; of equal layers once."""
        for k in range(last + 1):
            first = self.classes[k]
            piece, equal = self.piece(k, k), self.piece(first, first)
            if self._states(piece.entering) != self._states(equal.entering):
                self.joint(k, k)
                continue
            joint = self.joint(first, first)
            for v, w in zip(piece.leaving, equal.leaving, strict=True):
                if w in joint.rows:
                    self._rows[v] = joint.rows[w]
                if w in joint.joined:
                    self._joined.add(v)

    def _states(self, activations: Sequence[Var]) -> list[tuple[TimeState | None, bool]]:
        return [(self._rows.get(v), v in self._joined) for v in activations]

    def graph(
        self, first: int, last: int, num_microbatches: int, remat: Remat = "none"
    ) -> PieceGraph:
        """Return the graph to plan of the layers `first` to `last`."""
        return self.program(first, last, num_microbatches, remat).graph

    def program(
        self, first: int, last: int, num_microbatches: int, remat: Remat = "none"
    ) -> PieceProgram:
        """Return the same with the program that it was made from."""
        key = (first, last, num_microbatches, remat)
        if key not in self._programs:
            if len(self._programs) == _KEPT_PROGRAMS:
                del self._programs[next(iter(self._programs))]
            self._programs[key] = piece_program(
                self._step,
                self.joint(first, last, remat),
                self.update,
                self.update.share(first, last),
                num_microbatches,
                self.adjacent(first, last),
            )
        return self._programs[key]


def _check_value(split: SplitStep, chain: Chain) -> None:
    """Raises TraceError: no layer makes the value of the loss."""
    if split.forward.jaxpr.outvars[0] not in chain.maker:
        raise TraceError(
            "the loss follows from no operator that depends on parameters and batch; a step in "
            "stages needs one that does"
        )


def _named(equations: Sequence[Eqn]) -> Iterator[tuple[str, tuple[int, ...]]]:
    for eqn in equations:
        if eqn.primitive.name == "name":
            yield str(eqn.params["name"]), eqn.outvars[0].aval.shape
        for inner in bodies(eqn.params):
            yield from _named(inner.eqns)
