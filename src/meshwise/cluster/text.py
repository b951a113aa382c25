"""A cluster in a line of text: `8x p3.16xlarge`, `4x p3.16xlarge + 4x dgx-a100`, `v5e-256`.

Groups of hosts are joined by `+`, in the order in which their devices are numbered.  A group is a
number of hosts, `x`, and a host of the catalog; one host needs no number.  Upper and lower case
do not differ.  A TPU slice has the name of Google's accelerator type and is a cluster by itself.
So are virtual CPU devices, which are always of one host: `8 cpu` or `8 virtual CPU devices`.
"""

from __future__ import annotations

import re

from meshwise.cluster.catalog import HOSTS
from meshwise.cluster.cpu_host import cpu_host
from meshwise.cluster.host import HostGroup, HostSpec, check_size
from meshwise.cluster.slices import SLICES, slice_group
from meshwise.errors import ClusterError

_GROUP = re.compile(r"\s*(?:(\d+)\s*x\s*)?([A-Za-z][\w.\-]*)\s*", re.ASCII)
_CPU = re.compile(r"\s*(\d{1,5})\s*x?\s*(?:virtual\s+)?cpus?(?:\s+devices?)?\s*", re.ASCII | re.I)


def catalog_host(name: str, where: str = "", count: int = 1) -> HostSpec:
    """Return the host of a name.

    Args:
        name: The name.
        where: The beginning of an error.
        count: How many of them are asked for.

    Raises:
        ClusterError: there is none.
    """
    if name.lower() not in HOSTS:
        raise ClusterError(
            f"{where}no host {name!r:.60} in the catalog{_with_devices(name, count)}; known: "
            f"{', '.join(HOSTS)}; TPU slices as {', '.join(SLICES)}-N; virtual devices as '8 cpu'; "
            "describe another host in a TOML file"
        )
    return HOSTS[name.lower()]


def _with_devices(name: str, count: int) -> str:
    """Return which hosts have so many devices of a name, if it is the name of a device."""
    found = [host for host in HOSTS.values() if name.lower() in host.device.name.lower()]
    hosts = sorted(found, key=lambda host: -host.num_devices)
    whole = [host for host in hosts if count % host.num_devices == 0]
    if whole:
        told = " or ".join(f"'{count // host.num_devices}x {host.name}'" for host in whole)
        return f", which has hosts and not devices: {count} {name} are {told}"
    if hosts:
        told = " or ".join(f"'1x {host.name}' (with {host.num_devices})" for host in hosts)
        return f", which has hosts and not devices: take {told}"
    return ""


def cpu_name(num_devices: int) -> str:
    """Return the name of a cluster of virtual CPU devices."""
    return f"{num_devices} virtual CPU devices"


def groups_of(text: str) -> tuple[str, tuple[HostGroup, ...]]:
    """Return name and groups of hosts of a line of text.

    Raises:
        ClusterError: the text is not understood, or names a host that is not in the catalog.
    """
    on_cpu = _CPU.fullmatch(text)
    if on_cpu is not None:
        num_devices = int(on_cpu[1])
        return cpu_name(num_devices), (HostGroup(count=1, host=cpu_host(num_devices)),)
    parts = text.split("+")
    matches = [_GROUP.fullmatch(part) for part in parts]
    groups: list[HostGroup] = []
    for match in matches:
        if match is None or (match[1] is not None and not match[1].strip("0")):
            raise ClusterError(
                f"not a cluster: {text!r:.80}; write the number of hosts and their kind, "
                "as '8x p3.16xlarge' or '4x p3.16xlarge + 4x dgx-a100'; virtual devices as '8 cpu'"
            )
        slice_ = slice_group(match[2])
        if slice_ is not None and (match[1] is not None or len(parts) > 1):
            raise ClusterError(
                f"not a cluster: {text!r:.80}; a TPU slice such as {match[2]!r} is a cluster by "
                "itself; for several slices describe hosts and their network in a TOML file"
            )
        if slice_ is not None:
            check_size((slice_,), repr(text))
            return match[2].lower(), (slice_,)
        # Python refuses to read numbers of thousands of digits.
        digits = match[1] or "1"
        count = int(digits) if len(digits.lstrip("0")) <= 9 else 10**9
        groups.append(HostGroup(count=count, host=catalog_host(match[2], count=count)))
    check_size(groups, repr(text[:80]))
    joined = joined_groups(groups)
    return groups_name(joined), joined


def groups_name(groups: tuple[HostGroup, ...]) -> str:
    """Return groups as text, as `4x p3.16xlarge + 4x dgx-a100`."""
    return " + ".join(f"{group.count}x {group.host.name}" for group in groups)


def joined_groups(groups: list[HostGroup]) -> tuple[HostGroup, ...]:
    """Return the same hosts in the same order, neighbours of one kind in one group."""
    found: list[HostGroup] = []
    for group in groups:
        if found and found[-1].host == group.host:
            group = HostGroup(count=found.pop().count + group.count, host=group.host)
        found.append(group)
    return tuple(found)
