"""What all baselines take from the options of the search: micro-batches, memory options, prices."""

from __future__ import annotations

from collections.abc import Sequence

from meshwise.cluster.mesh import LogicalMesh
from meshwise.cluster.spec import ClusterSpec
from meshwise.cluster.submesh import SubmeshKind
from meshwise.inter.cost_table.variant import Variant
from meshwise.inter.cost_table.variant_costs import LayerSource
from meshwise.inter.layer_cost.state_costs import BytePrice
from meshwise.inter.search.microbatch_counts import microbatch_counts
from meshwise.inter.search.search_space import SearchOptions

_IN_FLIGHT = 4.0


def memory_of(kind: SubmeshKind, options: SearchOptions) -> float:
    """Return the bytes of one device."""
    return options.memory_bytes or kind.device.memory_bytes


def whole(cluster: ClusterSpec) -> SubmeshKind:
    """Return the whole cluster as one mesh.

    Raises:
        ClusterError: hosts differ.
    """
    return SubmeshKind(
        host=cluster.host, num_hosts=cluster.num_hosts, devices_per_host=cluster.devices_per_host
    )


def variants(
    kind: SubmeshKind, meshes: Sequence[LogicalMesh], cluster: ClusterSpec, options: SearchOptions
) -> tuple[Variant, ...]:
    """Return every memory option on every logical mesh."""
    rate = max(r for _, r in kind.device.flop_per_s)
    step_s = 3 * options.step_flop / (rate * cluster.num_devices)
    memory = memory_of(kind, options)
    return tuple(
        Variant(
            mesh=mesh,
            remat=remat,
            price=BytePrice(seconds_per_byte=price * step_s / memory, in_flight=_IN_FLIGHT),
        )
        for mesh in meshes
        for remat in options.remats
        for price in options.prices
    )


def counts(options: SearchOptions) -> list[int]:
    """Return the values of B that divide the batch; 1 is always among them.

    The search leaves out one micro-batch where it may cut the batch; baselines without a pipeline
    may want it.
    """
    values = sorted({1, *microbatch_counts(options)})
    if options.num_microbatches is not None:
        values = sorted(options.num_microbatches)
    return [b for b in values if options.batch_size % b == 0]


def crossing_bytes(source: LayerSource, last_layer: int, num_microbatches: int) -> float:
    """Return the bytes of one micro-batch that pass after a layer."""
    return source.crossing_bytes(last_layer) / num_microbatches
