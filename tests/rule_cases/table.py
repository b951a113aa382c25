"""All cases."""

from __future__ import annotations

from rule_cases import (
    along,
    attention,
    convolution,
    cudnn,
    elementwise,
    experts,
    indexing,
    kernel,
    linear_algebra,
    others,
    pallas,
    ragged_dot,
    random,
    shape,
    slicing,
    whole,
    windows,
)

CASES = (
    *elementwise.CASES,
    *shape.CASES,
    *slicing.CASES,
    *indexing.CASES,
    *random.CASES,
    *convolution.CASES,
    *windows.CASES,
    *others.CASES,
    *along.CASES,
    *kernel.CASES,
    *linear_algebra.CASES,
)

# Primitives that cannot be checked under `vmap`.
ON_DEVICES = (
    *along.ON_DEVICES,
    *attention.CASES,
    *cudnn.CASES,
    *elementwise.ON_DEVICES,
    *experts.CASES,
    *linear_algebra.ON_DEVICES,
    *others.ON_DEVICES,
    *pallas.CASES,
    *ragged_dot.CASES,
    *random.ON_DEVICES,
    *whole.ON_DEVICES,
)

# One of each kind of local form.
FORMS = (
    "broadcast_in_dim: new and stretched dims",
    "concatenate: two",
    "conv_general_dilated: plain",
    "conv_general_dilated: spatial, shift",
    "dot_general: batched",
    "gather: keys",
    "gather: lookup, fill",
    "gather: two columns",
    "iota: first dim",
    "random_bits: batched keys",
    "random_bits: uint32",
    "reduce_max: two dims",
    "reduce_window_max: overlap of negatives",
    "reduce_window_sum: corners",
    "reshape: regroup",
    "scatter-add: rows, drop",
    "tile: in front of a dim",
)
