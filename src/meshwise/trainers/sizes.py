"""What a trainer must know of a model and a cluster."""

from __future__ import annotations

from dataclasses import dataclass

from meshwise.baselines.pipelines.block_layers import body_of
from meshwise.cluster.spec import ClusterSpec
from meshwise.inter.cost_table.variant_costs import LayerSource
from meshwise.inter.search.microbatch_counts import microbatch_counts
from meshwise.inter.search.search_space import SearchOptions
from meshwise.trainers.layer_dims import layer_dims
from meshwise.trainers.point import TrainerPoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Numbers of a model and of a cluster.

    Attributes:
        num_devices: Devices in all.
        devices_per_host: Devices of one host.
        batch_size: Rows of the whole batch.
        microbatch_counts: Numbers of micro-batches to try.
        num_blocks: How often the model repeats; trainers divide this evenly.
        layers_per_block: How many layers, as trainers count them, are in what repeats; such a layer
            is attention and what follows it.
        num_heads: A number that divides those of all kinds of heads; 0 where there are none.
        num_experts: The same for experts; 1 where there are none.
        sequence: Dim and length of the sequence; None if there is none.
        has_rings: Whether keys of attention can go round.
    """

    num_devices: int
    devices_per_host: int
    batch_size: int
    microbatch_counts: tuple[int, ...]
    num_blocks: int
    num_heads: int
    layers_per_block: int = 1
    num_experts: int = 1
    sequence: tuple[int, int] | None = None
    has_rings: bool = False

    def layers_in_chunk(self, point: TrainerPoint) -> int:
        """Return the layers, as trainers count them, of each run of layers of a point."""
        return self.num_blocks // (point.pipeline * point.chunks) * self.layers_per_block


def sizes_of(source: LayerSource, cluster: ClusterSpec, options: SearchOptions) -> Sizes:
    """Return the numbers of a model that is cut into its blocks, and of a cluster.

    Args:
        source: The layers.
        cluster: Equal hosts.
        options: Batch, and numbers of micro-batches to try.

    Raises:
        ClusterError: hosts differ.
        PlanError: a number of micro-batches does not divide the batch.
    """
    body = body_of(source.classes)
    dims = layer_dims(source.graph(body.first, body.first + body.period - 1, 1))
    asked = options.num_microbatches
    counts = microbatch_counts(options)
    return Sizes(
        num_devices=cluster.num_devices,
        devices_per_host=cluster.devices_per_host,
        batch_size=options.batch_size,
        microbatch_counts=tuple(sorted(counts if asked else {1, *counts})),
        num_blocks=body.num_periods,
        layers_per_block=dims.num_attentions,
        num_heads=dims.num_heads,
        num_experts=dims.num_experts,
        sequence=dims.sequence,
        has_rings=dims.has_rings,
    )
