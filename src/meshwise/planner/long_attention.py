"""Whether reading and writing scores takes so much of a step that it is planned without them, too.

Attention as one operator holds the scores with only a chunk of keys at a time, and leaves out those
that a causal mask hides (`graph/chunks`).
"""

from __future__ import annotations

from meshwise.cluster.mesh import DeviceSpec
from meshwise.cluster.spec import ClusterSpec
from meshwise.graph.chunks import MOST_KEYS
from meshwise.jax_compat.jaxprs import FlatJaxpr
from meshwise.trace.attention.written_out import num_scores
from meshwise.trace.layers.layering import Layering

# Bytes written and read for each score in both passes, in 16 bits and without remat.
_TRAFFIC_BYTES = 20
# Of the time of scores and products; for less a second search does not pay.
_LEAST_SHARE = 0.1


def has_long_attention(step: FlatJaxpr, all_flop: float, device: DeviceSpec) -> bool:
    """Return whether attention with more keys than a chunk takes much of a step.

    Args:
        step: The step, or its forward pass, for the whole batch; calls were taken apart.
        all_flop: FLOP of the forward and the backward pass.
        device: On which it runs.
    """
    scores = num_scores(step, MOST_KEYS + 1)
    scores_s = scores * _TRAFFIC_BYTES / device.memory_bytes_per_s
    products_s = all_flop / max(rate for _, rate in device.flop_per_s)
    return scores_s > _LEAST_SHARE * (scores_s + products_s)


def layers_have_long_attention(layers: Layering, forward_flop: float, cluster: ClusterSpec) -> bool:
    """Return `has_long_attention` of a step in layers.

    Args:
        layers: The layers.
        forward_flop: FLOP of their forward pass on the whole batch; the backward pass has twice as
            many.
        cluster: Where they run.
    """
    step = layers.split.forward.jaxpr
    return has_long_attention(step, 3 * forward_flop, cluster.slowest().device)
