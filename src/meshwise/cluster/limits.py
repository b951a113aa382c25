"""How large a cluster may be."""

from __future__ import annotations

from collections.abc import Sequence

from meshwise.cluster.host import HostGroup
from meshwise.errors import ClusterError

# Larger than any that was built; beyond it a number is a mistake, and tables would not end.
MAX_DEVICES = 131072


def check_size(groups: Sequence[HostGroup], where: str) -> None:
    """Refuse a cluster of no hosts, or of more devices than there can be.

    Raises:
        ClusterError: it is.
    """
    if not groups:
        raise ClusterError(f"{where}: a cluster needs at least one group of hosts, got none")
    for group in groups:
        if group.count < 1 or group.host.num_devices < 1 or group.host.num_nics < 1:
            raise ClusterError(
                f"{where}: a group needs at least one host with a device and a NIC, got "
                f"{group.count} hosts {group.host.name!r} with {group.host.num_devices} devices "
                f"and {group.host.num_nics} NICs"
            )
    num_devices = sum(group.count * group.host.num_devices for group in groups)
    if num_devices > MAX_DEVICES:
        raise ClusterError(
            f"{where}: {num_devices} devices; at most {MAX_DEVICES} can be planned for"
        )
