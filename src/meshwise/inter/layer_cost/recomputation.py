"""What it takes that the backward pass repeats element-wise work instead of keeping its results.

In the planned graph every operator runs once, and its time holds what it reads and writes.  As two
programs, what is repeated (`Kept.again`) runs in both.  It is taken as fused, with itself and with
light operators that read it: it reads what is kept once more, and writes once more what dense
products of both passes read.

    seconds = bytes / memory bandwidth

Arithmetic of element-wise work is far below that and left out; weights and rows of the batch, small
beside activations in what is repeated, too.  But collectives that bring a weight into the layout in
which repeated work reads it run in both programs, and count (`intra.regions.Region.repeated`).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

from meshwise.cluster.mesh import LogicalMesh
from meshwise.graph.graph import Graph, Operator
from meshwise.intra.shapes import is_view, local_bytes
from meshwise.pieces.phases import ProgramCut, program_cuts
from meshwise.pieces.piece import PieceGraph
from meshwise.plan.counts.walk import Reshard, homes, reshards
from meshwise.plan.decision import GraphDecision, OperatorDecision


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """Tensors of the loop's body that move once more for each micro-batch; ascending.

    Attributes:
        read: Kept values that are read to repeat work.
        written: Values that both passes write for dense products.
    """

    read: tuple[int, ...]
    written: tuple[int, ...]

    @property
    def tensors(self) -> tuple[int, ...]:
        """All of them."""
        return self.read + self.written


def repeated(piece: PieceGraph) -> Repeated:
    """What moves once more because the backward pass repeats work."""
    body = piece.graph.operators[piece.loop].bodies[0]
    again = set(piece.border.again)
    maker = {t: i for i in again for t in body.operators[i].outputs}

    def written_as(t: int) -> int:
        """A view is read through what it is a view of."""
        while t in maker and is_view(body.operators[maker[t]]):
            inputs = body.operators[maker[t]].inputs
            if not inputs:
                break
            t = inputs[0]
        return t

    ahead = {written_as(t) for i in piece.forward for t in _read_by(body, i)}
    rest = set(range(len(body.operators))) - set(piece.forward)
    back = {written_as(t) for i in rest for t in _read_by(body, i)}
    kept = set(piece.border.tensors)
    read = {
        written_as(t)
        for i in again
        if not is_view(body.operators[i])
        for t in body.operators[i].inputs
    }
    return Repeated(
        read=tuple(sorted(read & kept)),
        written=tuple(sorted(t for t in ahead & back if t in maker)),
    )


def _read_by(body: Graph, i: int) -> tuple[int, ...]:
    """What an operator reads from memory, if it does not fuse with what makes it."""
    operator = body.operators[i]
    return operator.inputs if operator.heavy or operator.bodies else ()


def again_s(piece: PieceGraph, decision: GraphDecision, mesh: LogicalMesh) -> float:
    """Return the seconds in which a device repeats work, for one micro-batch.

    Args:
        piece: The layer.
        decision: Its plan.
        mesh: Where it runs.
    """
    loop, inner = piece.graph.operators[piece.loop], decision.operators[piece.loop]
    body, lies = loop.bodies[0], homes(loop.bodies[0], inner.bodies[0])
    tensors = [t for t in repeated(piece).tensors if not body.tensors[t].generated]
    num_bytes = sum(local_bytes(body.tensors[t], lies[t], mesh.sizes) for t in tensors)
    return num_bytes / mesh.device.memory_bytes_per_s


def repeated_moves(
    piece: PieceGraph, decision: GraphDecision
) -> tuple[list[Reshard], list[Reshard]]:
    """Return the changes of layout that a second program makes again, for work that it repeats.

    Args:
        piece: The layer.
        decision: Its plan.

    Returns:
        Those of all micro-batches, and those of the update.
    """
    cuts = program_cuts(piece)
    body = piece.graph.operators[piece.loop].bodies[0]
    inner = decision.operators[piece.loop].bodies[0]
    in_loop = _moves_again(body, inner, cuts[piece.loop, 0], piece.num_microbatches)
    return in_loop, _moves_again(piece.graph, decision, cuts[()], 1)


def _moves_again(
    graph: Graph, decision: GraphDecision, cut: ProgramCut, times: int
) -> list[Reshard]:
    operators: list[Operator] = []
    decided: list[OperatorDecision] = []
    for i in sorted(cut.again):
        op, chosen = graph.operators[i], decision.operators[i]
        reads = [k for k, t in enumerate(op.inputs) if t in cut.given]
        operators.append(replace(op, inputs=tuple(op.inputs[k] for k in reads)))
        decided.append(replace(chosen, uses=tuple(chosen.uses[k] for k in reads)))
    part = replace(graph, operators=tuple(operators), outputs=(), aliases=())
    of_part = GraphDecision(inputs=decision.inputs, operators=tuple(decided), outputs=())
    return [*itertools.chain.from_iterable(reshards(part, of_part, times))]
