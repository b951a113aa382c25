"""Submeshes: what a stage may run on, and where in the cluster's order of devices it may begin."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSubmesh:
    """A kind of submesh.  On a mixed cluster one shape on two kinds of hosts is two kinds.

    Attributes:
        num_hosts: Hosts.
        devices_per_host: Devices of each of them.
        memory_bytes: Memory of its smallest device that stages may use.
        reserved_bytes: Memory of that device that is left free beside it.
        host_kinds: Kinds of its hosts in order, for display; empty on a uniform cluster.
        starts: First devices that it may have.  None: anywhere, for `placement` finds a place
            afterwards (uniform cluster, shapes of appendix A).
        is_inner: Whether the device before its first one is of the same host, so that a stage
            which ends there sends inside the host; None: not known.
    """

    num_hosts: int
    devices_per_host: int
    memory_bytes: float
    reserved_bytes: float = 0.0
    host_kinds: tuple[str, ...] = ()
    starts: tuple[int, ...] | None = None
    is_inner: bool | None = None

    @property
    def num_devices(self) -> int:
        """Devices in all."""
        return self.num_hosts * self.devices_per_host

    @property
    def shape(self) -> tuple[int, int]:
        """Hosts, and devices of each."""
        return (self.num_hosts, self.devices_per_host)

    def __str__(self) -> str:
        """As `(2,8)` or `(1,4) on a100`."""
        kinds = " + ".join(dict.fromkeys(self.host_kinds))
        return f"({self.num_hosts},{self.devices_per_host})" + (f" on {kinds}" if kinds else "")
