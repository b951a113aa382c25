"""JAX's kernel of attention for GPUs, written in Pallas."""

import warnings

with warnings.catch_warnings():
    # JAX 0.11 says that another library has it now.
    warnings.simplefilter("ignore", DeprecationWarning)
    from jax.experimental.pallas.ops.gpu import attention as gpu_attention

__all__ = ["gpu_attention"]
