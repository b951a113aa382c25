"""Arrays and executables: types, layouts, memory of the host."""

from __future__ import annotations

from typing import Any

import jax
from jax import Array
from jax._src import dtypes

# How JAX names the memory of the host from which devices copy.
HOST_MEMORY = "pinned_host"


def has_type(dtype: Any) -> bool:
    """Tell whether numbers of a type are made here: those of 64 bits only under `enable_x64`.

    Args:
        dtype: The type.
    """
    return dtypes.canonicalize_dtype(dtype, allow_extended_dtype=True) == dtype


def with_checked_layouts(compiled: Any) -> Any:
    """Let a compiled program take arrays of whole numbers of less than a byte.

    Those of its arguments say how many bits a number takes, those of arrays say 0, so that JAX
    refuses all that are committed to their devices; `jax.jit` does not compare them.  JAX 0.10.2.

    Args:
        compiled: What `jax.jit(...).lower(...).compile()` returns.

    Returns:
        The same program, which leaves the layouts of such arguments to XLA.
    """
    executable = compiled._executable
    executable._xla_in_layouts = [
        None if layout is not None and layout.sub_byte_element_size_in_bits else layout
        for layout in executable._xla_in_layouts
    ]
    return compiled


# Whether `refill` is possible: JAX 0.11 gives no buffers to an array that was deleted.
CAN_REFILL = jax.__version_info__ < (0, 11)


def refill(array: Any, contents: Array) -> None:
    """Give a deleted array the buffers of another one of its shape, dtype and sharding.

    As JAX does with the arrays that its own functions with effects have changed; from 0.8 to 0.10.

    Args:
        array: The deleted array.
        contents: The other one.
    """
    array._replace_with(contents)
    # Shards that someone has looked at are kept there; these are still the deleted ones.
    vars(getattr(array, "_base_array", array)).pop("addressable_shards", None)
