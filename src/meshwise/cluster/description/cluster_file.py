"""The TOML description of a cluster.

    name = "lab"              # optional
    num_hosts = 2
    host = "p3.16xlarge"      # a host of the catalog, or a table:

    [host]
    name = "workstation"      # optional
    num_devices = 4
    link = { latency_s = 3e-6, bytes_per_s = 1e11 }    # of one device, inside the host
    nic = { latency_s = 3e-5, bytes_per_s = 1.25e9 }   # one NIC, the way to other hosts
    num_nics = 1              # optional; 4 here: each device its own
    source = "..."            # optional; of links and NICs

    [host.device]
    name = "card"
    memory_bytes = 16000000000
    memory_bytes_per_s = 7e11
    flop_per_s = { float32 = 8e12, bfloat16 = 6e13 }
    source = "measured with meshwise calibrate on 2026-11-20"
    # optional: measured times of dense products, pairs [FLOP, seconds]
    dense_times = { float32 = [[2.1e9, 4e-4], [1.7e10, 2.4e-3]] }
    # optional, both or none: one way between device and host while all devices of the host use
    # theirs, and the share of a device in the memory of the host
    host_bytes_per_s = 1.2e10
    host_memory_bytes = 64000000000

    [host.peak]               # optional: what the makers promise
    flop_per_s = { float32 = 1.6e13 }
    memory_bytes = 17179869184
    memory_bytes_per_s = 9e11
    link_bytes_per_s = 1.5e11
    nic_bytes_per_s = 1.25e9

Hosts that differ stand in groups, in the order in which their devices are numbered:

    [[hosts]]
    count = 4
    host = "p3.16xlarge"

    [[hosts]]
    count = 4
    host = "p3.16xlarge"      # or a table `[hosts.host]` with the keys of `[host]`
    nic = { latency_s = 3e-5, bytes_per_s = 1.25e9 }   # optional: in place of the host's
    num_nics = 1                                       # optional
    name = "slow network"                              # optional: of this kind of host

`profile = "profile.json"`, a file of `meshwise calibrate` beside this one, may stand wherever
`host` may.  Without `num_hosts` or `count` it is one host.

Numbers are what is reached, not peaks.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from meshwise.cluster.description import fields
from meshwise.cluster.description.fields import Table, required, shown, table_of
from meshwise.cluster.description.host_table import host_of, link_of
from meshwise.cluster.description.profile import read_profile
from meshwise.cluster.host import HostGroup, HostSpec, check_size
from meshwise.cluster.text import catalog_host, groups_name, joined_groups
from meshwise.errors import ClusterError
from meshwise.units import GIGA

# What is asked for each host looks for its group.
_MOST_GROUPS = 1024
_KIND_KEYS = ("host", "profile", "nic", "num_nics")


def cluster_fields(
    data: Table, where: str, folder: Path | None = None
) -> tuple[str, tuple[HostGroup, ...]]:
    """Return name and groups of hosts of a parsed description.

    Args:
        data: The table of the TOML file.
        where: The name of the file, for errors.
        folder: The folder in which profiles are looked for.

    Raises:
        ClusterError: naming the key that is missing, unknown or wrong.
    """
    table = table_of(data, where, ("name", "num_hosts", *_KIND_KEYS, "hosts"))
    if "hosts" in table:
        groups = _groups(table, where, folder)
    else:
        default = 1 if "profile" in table else None
        num_hosts = fields.count(table, "num_hosts", where, default)
        groups = [HostGroup(count=num_hosts, host=_kind(table, where, folder))]
    check_size(groups, where)
    _check_names(groups, where)
    joined = joined_groups(groups)
    if len(joined) > _MOST_GROUPS:
        raise ClusterError(
            f"{where}: {len(joined)} groups of hosts that differ from their neighbours; at most "
            f"{_MOST_GROUPS} can be planned for; let hosts of one kind follow each other"
        )
    return fields.text(table, "name", where, default=groups_name(joined)), joined


def _groups(table: Table, where: str, folder: Path | None) -> list[HostGroup]:
    for key in ("num_hosts", *_KIND_KEYS):
        if key in table:
            raise ClusterError(
                f"{where}: 'hosts' and {key!r} exclude each other; write {key!r} into each "
                "[[hosts]], as `count = 4` and `host = ...`"
            )
    items = fields.list_of(table["hosts"], f"{where}: hosts")
    if not items:
        raise ClusterError(f"{where}: 'hosts' is empty; write at least one [[hosts]]")
    groups: list[HostGroup] = []
    for i, item in enumerate(items):
        at = f"{where}: hosts[{i}]"
        group = table_of(item, at, ("count", "name", *_KIND_KEYS))
        default = 1 if "profile" in group else None
        host = _kind(group, at, folder)
        if "name" in group:
            host = dataclasses.replace(host, name=fields.text(group, "name", at))
        groups.append(HostGroup(count=fields.count(group, "count", at, default), host=host))
    return groups


def _kind(table: Table, where: str, folder: Path | None) -> HostSpec:
    """Return the kind of host that a table names, with the NICs that it states."""
    if "profile" in table:
        if "host" in table:
            raise ClusterError(
                f"{where}: 'host' and 'profile' exclude each other; a profile says what a host "
                "is; leave one out"
            )
        path = (folder or Path()) / fields.text(table, "profile", where)
        # One that waits for a writer, or never ends, is none.
        if path.exists() and not path.is_file() and not path.is_dir():
            raise ClusterError(f"{where}: profile {path} is no regular file; name one")
        host = read_profile(path).host
    else:
        value = required(table, "host", where)
        at = f"{where}: host"
        host = catalog_host(value, f"{at}: ") if isinstance(value, str) else host_of(value, at)
    if "nic" not in table and "num_nics" not in table:
        return host
    nic = link_of(table["nic"], f"{where}: nic") if "nic" in table else host.nic
    num_nics = fields.count(table, "num_nics", where, default=host.num_nics)
    text = f"{num_nics} x {nic.bytes_per_s / GIGA:g} GB/s NIC"
    # The peak is that of other NICs.
    peak = (
        None
        if host.peak is None
        else dataclasses.replace(
            host.peak, nic_bytes_per_s=max(nic.bytes_per_s, host.peak.nic_bytes_per_s)
        )
    )
    return dataclasses.replace(
        host, name=f"{host.name} with {text}", nic=nic, num_nics=num_nics, peak=peak
    )


def _check_names(groups: list[HostGroup], where: str) -> None:
    """One name, one kind of host."""
    kinds: dict[str, HostSpec] = {}
    for i, group in enumerate(groups):
        if kinds.setdefault(group.host.name, group.host) != group.host:
            raise ClusterError(
                f"{where}: hosts[{i}]: another kind of host is called {shown(group.host.name)} "
                "too; give each kind its own name"
            )
