"""A run of layers as a graph to plan: forward and backward over all micro-batches, then the update.

The graph is made for planning only.  Its loop runs B micro-batches on the same rows: what enters
and leaves has the shape of one micro-batch, gradients add up in carries, the update follows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshwise.graph.graph import Graph
from meshwise.pieces.residuals import Kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """An activation at a cut, and its cotangent.

    Attributes:
        value: Position of the activation among the graph's inputs (where it enters) or results
            (where it leaves).
        cotangent: Position of its cotangent among the results (where it enters) or inputs (where
            it leaves); -1 if no gradient flows through it.
        is_read: Whether a later piece reads it; else it is a value of the loss.
        num_bytes: The bytes of the activation in one micro-batch.
        is_adjacent: Whether it goes from one layer to the next; others skip layers.
    """

    value: int
    cotangent: int
    is_read: bool
    num_bytes: int
    is_adjacent: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceGraph:
    """What planning of one run of layers needs.

    Attributes:
        graph: The graph.
        loop: Position of the operator that runs the micro-batches.
        entering: Activations that come from earlier pieces.
        leaving: Activations that go to later ones.
        batch_dims: Batch dim of inputs that hold rows of the batch, by position.
        state: Positions of the inputs that the update overwrites: parameters, optimizer state.
        num_microbatches: B.
        early: Positions of results that are known before the first micro-batch, and go to earlier
            pieces: cotangents of what enters once a step.
        late: Positions of the inputs that are cotangents of what leaves once a step.
        forward: Operators of the loop's body that run in the forward pass, ascending.
        border: What the backward pass of a micro-batch has of the forward pass.
        update: Positions of the results that the update makes: for each of its phases what is sent
            to be joined with that of other pieces, then the results of the step.
    """

    graph: Graph
    loop: int
    entering: tuple[Crossing, ...]
    leaving: tuple[Crossing, ...]
    batch_dims: Mapping[int, int]
    state: tuple[int, ...]
    num_microbatches: int
    early: tuple[int, ...]
    late: tuple[int, ...]
    forward: tuple[int, ...]
    border: Kept
    update: tuple[tuple[int, ...], ...]
