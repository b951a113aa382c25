"""A pipeline as the simulator sees it, from the costs of its chunks.

A chunk is a run of layers.  A mesh has one, or several, as the schedule says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from meshwise.cluster.spec import ClusterSpec
from meshwise.resharding.between import Passing
from meshwise.simulate.flows import flows_between, host_links
from meshwise.simulate.pipeline import PricedPipeline
from meshwise.simulate.stages import StageBoundary, StageCost

# Where a schedule splits the backward pass and nothing is known of the gradients of weights, they
# are taken for half of it, as they are of dense products.
_WEIGHT_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One run of layers on one mesh.

    Attributes:
        forward_s: Seconds of the forward pass of one micro-batch.
        backward_s: Seconds of its backward pass, recomputation included.
        once_s: Seconds of what is done once a step.
        resident_bytes: Bytes that one device holds all the time.
        microbatch_bytes: Bytes held for each micro-batch in flight.
        temporary_bytes: Bytes on top of that at the peak.
        forward_gather_s: Seconds to gather, before its forward pass, what another mesh sent.
        backward_gather_s: The same of a cotangent.
        forward_passing: How much of what another mesh sends passes between hosts; None where it
            passes once and comes in equal parts.
        backward_passing: The same of a cotangent.
        weight_s: Of `backward_s`, the gradients of weights, where the schedule has them apart; None
            for half of it.
        weight_bytes: Bytes held for each micro-batch between the two; None for `microbatch_bytes`.
        collective_s: Seconds of a step in collectives, all micro-batches together, for reports; the
            other seconds hold them.
    """

    forward_s: float
    backward_s: float
    once_s: float
    resident_bytes: float
    microbatch_bytes: float
    temporary_bytes: float
    forward_gather_s: float = 0.0
    backward_gather_s: float = 0.0
    forward_passing: Passing | None = None
    backward_passing: Passing | None = None
    weight_s: float | None = None
    weight_bytes: float | None = None
    collective_s: float = 0.0

    @property
    def microbatch_s(self) -> float:
        """Forward and backward of one micro-batch."""
        return self.forward_s + self.backward_s

    @property
    def gather_s(self) -> float:
        """To gather what arrives in both directions for one micro-batch."""
        return self.forward_gather_s + self.backward_gather_s


def chunk_pipeline(
    cluster: ClusterSpec,
    mesh_of_chunk: Sequence[int],
    chunks: Sequence[Chunk],
    meshes: Sequence[tuple[Sequence[int], int]],
    crossing_bytes: Sequence[tuple[float, float]],
    *,
    hides_transfers: bool,
) -> PricedPipeline:
    """Return chunks as the stages of a pipeline on a cluster.

    Args:
        cluster: The cluster on which they run.
        mesh_of_chunk: For each chunk its mesh.
        chunks: The costs of the chunks, in the order of the layers.
        meshes: Hosts of each mesh, and its devices of each host.
        crossing_bytes: For each chunk but the last the bytes of one micro-batch that pass after it,
            and those that come back there.
        hides_transfers: Whether transfers between stages run beside computation.
    """
    boundaries = [
        StageBoundary(
            source=k,
            destination=k + 1,
            forward=flows_between(
                cluster, meshes[a], meshes[b], there, chunks[k + 1].forward_passing
            ),
            backward=flows_between(cluster, meshes[b], meshes[a], back, chunks[k].backward_passing),
        )
        for k, ((a, b), (there, back)) in enumerate(
            zip(pairwise(mesh_of_chunk), crossing_bytes, strict=True)
        )
        if a != b
    ]
    costs = [stage_cost(chunk) for chunk in chunks]
    return PricedPipeline(costs, boundaries, host_links(cluster), hides_transfers)


def stage_cost(chunk: Chunk) -> StageCost:
    """Return a chunk as the simulator takes it."""
    weight_s = _WEIGHT_SHARE * chunk.backward_s if chunk.weight_s is None else chunk.weight_s
    return StageCost(
        forward_s=chunk.forward_s + chunk.forward_gather_s,
        backward_s=chunk.backward_s + chunk.backward_gather_s,
        activation_gradient_s=chunk.backward_s - weight_s + chunk.backward_gather_s,
        weight_gradient_s=weight_s,
        apply_s=chunk.once_s,
        resident_bytes=round(chunk.resident_bytes),
        held_bytes=round(chunk.microbatch_bytes),
        weight_held_bytes=None if chunk.weight_bytes is None else round(chunk.weight_bytes),
        temporary_bytes=round(chunk.temporary_bytes),
    )
