"""The memory of a finished pipeline, counted anew from the decisions about its layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from meshwise.inter.layer_cost.arrivals import ArrivalWork
from meshwise.inter.layer_cost.footprint import Footprint, footprint, joint_footprint
from meshwise.pieces.piece import PieceGraph
from meshwise.plan.fits import StageBytes, check_fits, local_bytes, meshes_of
from meshwise.plan.plan import Plan
from meshwise.plan.stage import Layer, Stage

# The graph that was planned of a layer, by the number of its stage.
PieceOf = Callable[[int, Layer], PieceGraph]


def check_pipeline_fits(
    plan: Plan,
    pieces: PieceOf,
    arrivals: Sequence[ArrivalWork],
    waiting: Sequence[int],
    memory: Callable[[Stage], int],
    remedy: str,
) -> list[StageBytes]:
    """Check that every stage of a pipeline fits into the devices of its mesh.

    Args:
        plan: The pipeline, with the decisions about its layers.
        pieces: The graphs of its layers.
        arrivals: For each layer what it does to values of others.
        waiting: For each stage the bytes of values that wait at the peak.
        memory: Bytes of a device that a stage may use.
        remedy: What to do if a stage does not fit.

    Returns:
        What a device holds for each stage.

    Raises:
        PlanError: a mesh needs more memory than its devices have.
    """
    held = _stage_bytes(plan, pieces, arrivals, plan.table().splits_backward)
    stages = [replace(stage, waiting=more) for stage, more in zip(held, waiting, strict=True)]
    check_fits(meshes_of(plan, stages, [memory(stage) for stage in plan.stages]), remedy)
    return stages


def _stage_bytes(
    plan: Plan, pieces: PieceOf, arrivals: Sequence[ArrivalWork], splits_backward: bool
) -> list[StageBytes]:
    # Equal layers with one decision on equal meshes hold the same.
    known: dict[object, tuple[Footprint, int]] = {}

    def layers(number: int, stage: Stage) -> Iterator[tuple[Footprint, int]]:
        for layer in stage.layers:
            extra = arrivals[layer.layer].extra
            key = (layer.equal_to, layer.decision, stage.mesh, stage.remat, extra)
            if key not in known:
                assert layer.decision is not None  # a plan that is made or replayed has all
                decision = plan.decisions[layer.decision]
                piece = pieces(number, layer)
                held = footprint(
                    piece, decision, stage.mesh, splits_backward=splits_backward, extra=extra
                )
                inputs = piece.graph.inputs
                state = sum(
                    local_bytes(
                        piece.graph.tensors[inputs[i]], decision.inputs[i], stage.mesh.sizes
                    )
                    for i in piece.state
                    if i not in decision.in_host
                )
                known[key] = held, state
            yield known[key]

    found: list[StageBytes] = []
    for number, stage in enumerate(plan.stages):
        every = list(layers(number, stage))
        whole = joint_footprint([held for held, _ in every])
        found.append(whole.of_stage(sum(state for _, state in every)))
    return found
