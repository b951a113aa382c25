"""What a compiled program really does: collectives, dense FLOP, memory.

The measured side of invariant I2 (docs/invariants.md).  The parts: `hlo_parse` reads the text,
`hlo_walk` counts executions, `hlo_collectives` and `hlo_flop` account.
"""

from __future__ import annotations

from typing import Any

from meshwise.errors import ProgramError
from meshwise.runtime.hlo_collectives import HloCollective, bytes_by_kind, hlo_collectives
from meshwise.runtime.hlo_flop import hlo_dense_flop
from meshwise.runtime.hlo_parse import Module, parse_module

__all__ = [
    "HloCollective",
    "Module",
    "bytes_by_kind",
    "device_peak_bytes",
    "hlo_collectives",
    "hlo_dense_flop",
    "parse_module",
]


def device_peak_bytes(compiled: Any) -> int:
    """Bytes that one device holds while the program runs: arguments, results, temporaries.

    Args:
        compiled: What `jax.jit(...).lower(...).compile()` returns.

    Raises:
        ProgramError: The backend does not analyse memory.

    Source: `memory_analysis()`, argument + output - alias + temp.  Its `peak_memory_in_bytes`
    omits temporaries in JAX 0.10.2.
    """
    stats = compiled.memory_analysis()
    if stats is None:
        raise ProgramError("the backend gives no memory analysis of the compiled program")
    return (
        stats.argument_size_in_bytes
        + stats.output_size_in_bytes
        - stats.alias_size_in_bytes
        + stats.temp_size_in_bytes
    )
