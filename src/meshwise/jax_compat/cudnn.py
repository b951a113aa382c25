"""Attention by cuDNN, also where JAX finds none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, nn
from jax._src.cudnn import fused_attention_stablehlo as cudnn
from jax._src.interpreters import mlir

from meshwise.jax_compat.jaxprs import Primitive


@cache
def _on_one_device(is_backward: bool) -> Primitive:
    wrapper = (
        cudnn._dot_product_attention_bwd_p_wrapper
        if is_backward
        else cudnn._dot_product_attention_fwd_p_wrapper
    )
    # It has the name of JAX's primitive, so the rule of that name holds in micro-batches too.
    made = Primitive(wrapper.name)
    made.multiple_results = True
    if is_backward:
        shapes = cudnn._dot_product_attention_bwd_abstract
        lowering = cudnn._dot_product_attention_bwd_cuda_lowering
    else:
        shapes = cudnn._dot_product_attention_fwd_abstract
        lowering = cudnn._dot_product_attention_fwd_cuda_lowering
    made.def_abstract_eval(shapes)
    mlir.register_lowering(made, lowering, platform="cuda")
    return made


def cudnn_on_one_device(
    primitive: Primitive, operands: Sequence[Array], params: Mapping[str, Any]
) -> list[Array]:
    """Bind attention by cuDNN where each device runs its own part.

    JAX's own primitives find out how their operands are split, for which they want the devices
    when a program is lowered; inside of `shard_map` nothing is to be found.  JAX 0.10.2.

    Args:
        primitive: One of JAX's primitives, or one in its place.
        operands: The local operands.
        params: The parameters.

    Returns:
        The results.
    """
    is_backward = primitive is cudnn._dot_product_attention_bwd_p_wrapper
    if not is_backward and primitive is not cudnn._dot_product_attention_fwd_p_wrapper:
        return primitive.bind(*operands, **params)
    own = _on_one_device(is_backward)
    query, key, value, bias, rows, keys, row_offsets, key_offsets, *others = operands
    lengths = cudnn._fix_seqlen_offsets(rows, keys, row_offsets, key_offsets, query, key)
    return own.bind(query, key, value, bias, *lengths, *others, **params)


# What JAX says where it has no cuDNN: without and with its plugin for CUDA.
_NO_CUDNN = ("cuDNN is not detected", "cuDNN not found")


# The cuDNN for which attention is traced where there is none: what it can do is asked of its
# version.  Source: cuDNN 9.10.2, the oldest that JAX 0.10 supports on all its GPUs.
_CUDNN_VERSION = 91002


def is_missing_cudnn(error: Exception) -> bool:
    """Tell whether JAX has raised an error because there is no cuDNN.

    Args:
        error: The error.

    Returns:
        Whether it has.
    """
    return any(text in str(error) for text in _NO_CUDNN)


def _is_installed() -> bool:
    """Return whether JAX finds a cuDNN: its plugin may be there alone, as to compile for GPUs."""
    try:
        return cudnn.check_cudnn_version() > 0
    except RuntimeError:
        return False


def attention_by_cudnn(
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None,
    mask: Array | None,
    *,
    scale: float | None,
    is_causal: bool,
    lengths: tuple[Array | None, Array | None],
    window: int | None,
) -> Array:
    """Bind attention by cuDNN as `jax.nn.dot_product_attention` does, also where there is none.

    JAX asks which cuDNN is there before it binds its primitives (0.10.2); nothing else of them
    needs it.

    Args:
        query: (batch, row, head, feature).
        key: (batch, key, head, feature).
        value: (batch, key, head, feature).
        bias: (1 or batch, 1 or head, row, key).
        mask: The same, of booleans.
        scale: Factor of the scores; None for 1 / sqrt(features).
        is_causal: Whether a row sees no key after its own place.
        lengths: Numbers of rows and of keys of each sequence.
        window: How many keys before its own place a row sees; None for all.

    Returns:
        (batch, row, head, feature).
    """
    if _is_installed():
        return nn.dot_product_attention(
            query,
            key,
            value,
            bias,
            mask,
            scale=scale,
            is_causal=is_causal,
            query_seq_lengths=lengths[0],
            key_value_seq_lengths=lengths[1],
            local_window_size=None if window is None else (window, 0),
            implementation="cudnn",
        )
    layout, unused = cudnn.AttentionLayout.BTNH, jnp.zeros(0, query.dtype)
    mask_type = cudnn.MaskType.CAUSAL if is_causal else cudnn.MaskType.NO_MASK
    rows, keys = lengths
    if rows is not None or keys is not None:
        mask_type = cudnn.MaskType.PADDING_CAUSAL if is_causal else cudnn.MaskType.PADDING
        rows, keys = (
            jnp.full(x.shape[:1], x.shape[1], np.int32) if own is None else own
            for own, x in ((rows, query), (keys, key))
        )
    bias = cudnn.combine_bias_and_mask(bias, mask, query.dtype)
    cudnn.check_layout(query, key, value, bias, rows, keys, None, None, None, None, layout)
    return cudnn._dot_product_attention(
        query,
        key,
        value,
        unused if bias is None else bias,
        unused if rows is None else rows,
        unused if keys is None else keys,
        *(unused,) * 4,
        float(1 / np.sqrt(query.shape[-1])) if scale is None else scale,
        42,
        0.0,
        (bias is not None, bias is not None),
        mask_type,
        layout.value,
        None if window is None else window + 1,
        _CUDNN_VERSION,
        False,
    )
