"""How a tensor is sent between hosts: what a transfer is told."""

from __future__ import annotations

from dataclasses import dataclass

from meshwise.resharding.cross_mesh.cross_mesh_plan import BEST
from meshwise.resharding.cross_mesh.strategies import BROADCAST

# What a chunk takes beside its bytes. Measured (2-core VM, JAX 0.10.2, sockets between two
# processes): 0.1 to 0.3 ms of Python on each side, and about 1 ms of latency.
CHUNK_S = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """A strategy, and the numbers that senders, order and chunks are chosen by.

    Attributes:
        strategy: One of `strategies.STRATEGIES`.
        bytes_per_s: Rate of the network card of a host, in each direction.
        chunk_s: What a chunk of a broadcast takes beside its bytes.
        algorithm: One of `cross_mesh_plan.ALGORITHMS`.
    """

    bytes_per_s: float
    strategy: str = BROADCAST
    chunk_s: float = CHUNK_S
    algorithm: str = BEST
