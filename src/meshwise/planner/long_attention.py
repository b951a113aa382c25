"""Whether scores that attention writes out take so much of a step that it may pay to have none.

Then the step is planned with attention as one operator, too, which keeps a chunk of them at a time,
and in a ring does not compute those that a causal mask hides.
"""

from __future__ import annotations

from meshwise.cluster.mesh import DeviceSpec
from meshwise.cluster.spec import ClusterSpec
from meshwise.jax_compat.jaxprs import FlatJaxpr
from meshwise.rules.attention.blocks import MOST_KEYS
from meshwise.trace.attention.written_out import num_scores
from meshwise.trace.layers.layering import Layering

# Bytes written and read for each score in both passes, in 16 bits and without remat; a smaller
# share of a step is not worth a second search.
_TRAFFIC_BYTES, _LEAST_SHARE = 20, 0.1


def has_long_attention(step: FlatJaxpr, step_flop: float, device: DeviceSpec) -> bool:
    """Return whether attention with more keys than a chunk takes much of a step.

    Args:
        step: The step, or its forward pass, for the whole batch; calls were taken apart.
        step_flop: FLOP of all passes.
        device: On which it runs.
    """
    scores = num_scores(step, MOST_KEYS + 1)
    scores_s = scores * _TRAFFIC_BYTES / device.memory_bytes_per_s
    products_s = step_flop / max(rate for _, rate in device.flop_per_s)
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
