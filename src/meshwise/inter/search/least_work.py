"""What all layers take on one device, shared evenly by all devices."""

from __future__ import annotations

import math

from meshwise.cluster.spec import ClusterSpec
from meshwise.errors import TraceError
from meshwise.inter.cost_table.variant_costs import LayerSource, VariantCosts
from meshwise.inter.search.microbatch_counts import microbatch_counts
from meshwise.inter.search.search_space import SearchOptions


def least_work_s(source: LayerSource, cluster: ClusterSpec, options: SearchOptions) -> float:
    """Return the seconds of all passes if n devices do an n-th each of what one would do alone.

    It is for the fewest micro-batches, since a layer takes no more time for the rows of several
    micro-batches at once than for one after the other; and without rematerialisation, if that is
    allowed.

    Args:
        source: The layers.
        cluster: Where they run; all devices are taken to be like those of the slowest host.
        options: What is searched.

    Returns:
        The seconds; infinite where the step does not separate into so few micro-batches.
    """
    costs, (one, *_) = VariantCosts(source, options.intra), cluster.slowest().submesh_kinds()
    mesh, count = one.mesh((one.num_devices,)), min(microbatch_counts(options))
    remat = "none" if "none" in options.remats else options.remats[0]
    try:
        alone = costs.alone(mesh, remat, count)
    except TraceError:
        return math.inf
    return math.inf if alone is None else float(alone.loop_s[0, -1]) / cluster.num_devices
