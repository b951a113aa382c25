"""The TOML description of a cluster.

    name = "lab"              # optional
    num_hosts = 2
    host = "p3.16xlarge"      # a host of the catalog, or a table:

    [host]
    name = "workstation"      # optional
    num_devices = 4
    link = { latency_s = 3e-6, bytes_per_s = 1e11 }
    nic = { latency_s = 3e-5, bytes_per_s = 1.25e9 }

    [host.device]
    name = "card"
    memory_bytes = 16000000000
    memory_bytes_per_s = 7e11
    flop_per_s = { float32 = 8e12, bfloat16 = 6e13 }
    source = "measured with meshwise calibrate on 2026-11-20"

Numbers are what is reached, not peaks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from meshwise.cluster.catalog import HOSTS
from meshwise.cluster.host import HostSpec, Link
from meshwise.cluster.mesh import DeviceSpec
from meshwise.errors import ClusterError

Table = Mapping[str, object]


def _table(value: object, where: str, known: tuple[str, ...]) -> Table:
    if not isinstance(value, dict):
        raise ClusterError(f"{where} must be a table, got {value!r}")
    table = cast(Table, value)
    for key in table:
        if key not in known:
            raise ClusterError(f"{where}: unknown key {key!r}; known: {', '.join(known)}")
    return table


def _get(table: Table, key: str, where: str) -> object:
    if key not in table:
        raise ClusterError(f"{where}: key {key!r} is missing")
    return table[key]


def _text(table: Table, key: str, where: str, default: str | None = None) -> str:
    if default is not None and key not in table:
        return default
    value = _get(table, key, where)
    if not isinstance(value, str):
        raise ClusterError(f"{where}: {key!r} must be a text, got {value!r}")
    return value


def _count(table: Table, key: str, where: str) -> int:
    value = _get(table, key, where)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ClusterError(f"{where}: {key!r} must be a whole number above zero, got {value!r}")
    return value


def _number(table: Table, key: str, where: str, *, above_zero: bool = True) -> float:
    value = _get(table, key, where)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ClusterError(f"{where}: {key!r} must be a number, got {value!r}")
    # `not >` and `not <` also refuse nan.
    if not (value > 0 or (value == 0 and not above_zero)) or not value < float("inf"):
        bound = "above zero" if above_zero else "zero or more"
        raise ClusterError(f"{where}: {key!r} must be finite and {bound}, got {value!r}")
    return float(value)


def _link(value: object, where: str) -> Link:
    table = _table(value, where, ("latency_s", "bytes_per_s"))
    return Link(
        latency_s=_number(table, "latency_s", where, above_zero=False),
        bytes_per_s=_number(table, "bytes_per_s", where),
    )


def _device(value: object, where: str) -> DeviceSpec:
    known = ("name", "memory_bytes", "memory_bytes_per_s", "flop_per_s", "source")
    table = _table(value, where, known)
    rates = _get(table, "flop_per_s", where)
    if not isinstance(rates, dict) or not rates:
        raise ClusterError(
            f"{where}: 'flop_per_s' must be a table of dtype names with FLOP/s, got {rates!r}"
        )
    rates = cast(Table, rates)
    return DeviceSpec(
        name=_text(table, "name", where),
        memory_bytes=_count(table, "memory_bytes", where),
        memory_bytes_per_s=_number(table, "memory_bytes_per_s", where),
        flop_per_s=tuple(
            sorted((key, _number(rates, key, f"{where}.flop_per_s")) for key in rates)
        ),
        source=_text(table, "source", where),
    )


def _host(value: object, where: str) -> HostSpec:
    if isinstance(value, str):
        if value.lower() not in HOSTS:
            raise ClusterError(
                f"{where}: no host {value!r} in the catalog; known: {', '.join(HOSTS)}"
            )
        return HOSTS[value.lower()]
    table = _table(value, where, ("name", "num_devices", "link", "nic", "device"))
    device = _device(_get(table, "device", where), f"{where}.device")
    return HostSpec(
        name=_text(table, "name", where, default=device.name),
        num_devices=_count(table, "num_devices", where),
        device=device,
        link=_link(_get(table, "link", where), f"{where}.link"),
        nic=_link(_get(table, "nic", where), f"{where}.nic"),
    )


def cluster_fields(data: Table, where: str) -> tuple[str, int, HostSpec]:
    """Name, number of hosts and kind of host of a parsed description.

    Raises:
        ClusterError: naming the key that is missing, unknown or wrong.
    """
    table = _table(data, where, ("name", "num_hosts", "host"))
    num_hosts = _count(table, "num_hosts", where)
    host = _host(_get(table, "host", where), f"{where}: host")
    return _text(table, "name", where, default=f"{num_hosts}x {host.name}"), num_hosts, host
