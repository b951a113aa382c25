"""One kind of host from the table of a description, as in TOML files and in profiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from meshwise.cluster.description import fields
from meshwise.cluster.description.fields import Table, required, shown, table_of
from meshwise.cluster.host import HostSpec, Link, PeakRate
from meshwise.cluster.mesh import DeviceSpec
from meshwise.errors import ClusterError

DTYPES = (
    "float64", "float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2",
    "int32", "int16", "int8", "int4", "complex64", "complex128",
)  # fmt: skip
# An unknown dtype runs at the slowest known rate, which says nothing where this one is missing.
_NEEDED_DTYPE = "float32"
_HOST_KEYS = ("name", "num_devices", "device", "link", "nic", "num_nics", "source", "peak")
_DEVICE_KEYS = (
    "name", "memory_bytes", "memory_bytes_per_s", "flop_per_s", "source", "dense_times",
    "host_bytes_per_s", "host_memory_bytes",
)  # fmt: skip
_PEAK_KEYS = (
    "flop_per_s", "memory_bytes", "memory_bytes_per_s", "link_bytes_per_s", "nic_bytes_per_s",
)  # fmt: skip


def host_of(value: object, where: str) -> HostSpec:
    """Return a host from its table; `cluster_file` documents the keys.

    Raises:
        ClusterError: naming the key that is missing, unknown or wrong.
    """
    table = table_of(value, where, _HOST_KEYS)
    device = _device(required(table, "device", where), f"{where}.device")
    host = HostSpec(
        name=fields.text(table, "name", where, default=device.name),
        num_devices=fields.count(table, "num_devices", where),
        device=device,
        link=link_of(required(table, "link", where), f"{where}.link"),
        nic=link_of(required(table, "nic", where), f"{where}.nic"),
        num_nics=fields.count(table, "num_nics", where, default=1),
        source=fields.text(table, "source", where, default=device.source),
        peak=_peak(table["peak"], f"{where}.peak") if "peak" in table else None,
    )
    _check_peak(host, where)
    return host


def link_of(value: object, where: str) -> Link:
    """Return a link from its table.

    Raises:
        ClusterError: naming the key that is missing, unknown or wrong.
    """
    table = table_of(value, where, ("latency_s", "bytes_per_s"))
    return Link(
        latency_s=fields.number(table, "latency_s", where, above_zero=False),
        bytes_per_s=fields.number(table, "bytes_per_s", where),
    )


def host_table(host: HostSpec) -> dict[str, object]:
    """Return the table of a host, which `host_of` reads back; equal hosts give equal tables.

    1 and 1.0 are equal, so both are 1.0 where a float is.
    """
    device = host.device
    table: dict[str, object] = {
        "name": host.name,
        "num_devices": host.num_devices,
        "device": {
            "name": device.name,
            "memory_bytes": device.memory_bytes,
            "memory_bytes_per_s": float(device.memory_bytes_per_s),
            "flop_per_s": _rates_table(device.flop_per_s),
            "source": device.source,
        }
        | _dense_times_table(device)
        | _host_memory_table(device),
        "link": _link_table(host.link),
        "nic": _link_table(host.nic),
        "num_nics": host.num_nics,
        "source": host.source or device.source,
    }
    if host.peak is not None:
        peak = host.peak
        table["peak"] = {
            "flop_per_s": _rates_table(peak.flop_per_s),
            "memory_bytes": peak.memory_bytes,
            "memory_bytes_per_s": float(peak.memory_bytes_per_s),
            "link_bytes_per_s": float(peak.link_bytes_per_s),
            "nic_bytes_per_s": float(peak.nic_bytes_per_s),
        }
    return table


def _rates_table(rates: Sequence[tuple[str, float]]) -> dict[str, float]:
    return {dtype: float(rate) for dtype, rate in rates}


def _dense_times_table(device: DeviceSpec) -> dict[str, object]:
    if not device.dense_times:
        return {}
    times = {
        dtype: [[float(flop), float(seconds)] for flop, seconds in points]
        for dtype, points in device.dense_times
    }
    return {"dense_times": times}


def _host_memory_table(device: DeviceSpec) -> dict[str, object]:
    if not device.host_bytes_per_s:
        return {}
    return {
        "host_bytes_per_s": float(device.host_bytes_per_s),
        "host_memory_bytes": device.host_memory_bytes,
    }


def _link_table(link: Link) -> dict[str, object]:
    return {"latency_s": float(link.latency_s), "bytes_per_s": float(link.bytes_per_s)}


def _device(value: object, where: str) -> DeviceSpec:
    table = table_of(value, where, _DEVICE_KEYS)
    return DeviceSpec(
        name=fields.text(table, "name", where),
        memory_bytes=fields.count(table, "memory_bytes", where),
        memory_bytes_per_s=fields.number(table, "memory_bytes_per_s", where),
        flop_per_s=_rates(required(table, "flop_per_s", where), where),
        source=fields.text(table, "source", where),
        dense_times=_dense_times(table.get("dense_times", {}), f"{where}.dense_times"),
        **_host_memory(table, where),
    )


def _host_memory(table: Table, where: str) -> dict[str, Any]:
    names = [n for n in ("host_bytes_per_s", "host_memory_bytes") if n in table]
    if not names:
        return {}
    return {
        "host_bytes_per_s": fields.number(table, "host_bytes_per_s", where),
        "host_memory_bytes": fields.count(table, "host_memory_bytes", where),
    }


def _by_dtype(value: object, where: str, what: str) -> Table:
    if not isinstance(value, dict) or not value:
        raise ClusterError(f"{where}: {what}, got {shown(cast(object, value))}")
    table = cast(Mapping[str, object], value)
    for dtype in table:
        if dtype not in DTYPES:
            raise ClusterError(f"{where}: no dtype {shown(dtype)}; known: {', '.join(DTYPES)}")
    return table


def _rates(value: object, where: str) -> tuple[tuple[str, float], ...]:
    key = "'flop_per_s' must be a table of dtype names with FLOP/s"
    table = _by_dtype(value, where, key)
    rates = tuple(
        sorted((dtype, fields.number(table, dtype, f"{where}.flop_per_s")) for dtype in table)
    )
    if _NEEDED_DTYPE not in table:
        raise ClusterError(
            f"{where}: 'flop_per_s' has no rate for {_NEEDED_DTYPE}, only for {', '.join(table)}; "
            "add it, as `float32 = 8e12`"
        )
    return rates


def _dense_times(
    value: object, where: str
) -> tuple[tuple[str, tuple[tuple[float, float], ...]], ...]:
    if value == {}:
        return ()
    table = _by_dtype(value, where, "must be a table of dtype names with lists of [FLOP, seconds]")
    return tuple(sorted((dtype, _points(table[dtype], f"{where}.{dtype}")) for dtype in table))


def _points(value: object, where: str) -> tuple[tuple[float, float], ...]:
    found: list[tuple[float, float]] = []
    for i, item in enumerate(fields.list_of(value, where)):
        pair = fields.list_of(item, f"{where}[{i}]")
        if len(pair) != 2:
            raise ClusterError(f"{where}[{i}] must be a pair [FLOP, seconds], got {shown(pair)}")
        flop = fields.number_of(pair[0], "FLOP", f"{where}[{i}]")
        seconds = fields.number_of(pair[1], "seconds", f"{where}[{i}]")
        if found and not (flop > found[-1][0] and seconds >= found[-1][1]):
            raise ClusterError(
                f"{where}[{i}]: FLOP and seconds must ascend, got {shown(pair)} after "
                f"{list(found[-1])}"
            )
        found.append((flop, seconds))
    if not found:
        raise ClusterError(f"{where} must have at least one pair [FLOP, seconds], got []")
    return tuple(found)


def _peak(value: object, where: str) -> PeakRate:
    table = table_of(value, where, _PEAK_KEYS)
    return PeakRate(
        flop_per_s=_rates(required(table, "flop_per_s", where), where),
        memory_bytes=fields.count(table, "memory_bytes", where),
        memory_bytes_per_s=fields.number(table, "memory_bytes_per_s", where),
        link_bytes_per_s=fields.number(table, "link_bytes_per_s", where),
        nic_bytes_per_s=fields.number(table, "nic_bytes_per_s", where),
    )


def _check_peak(host: HostSpec, where: str) -> None:
    """Nothing reaches more than its peak."""
    if host.peak is None:
        return
    peaks = dict(host.peak.flop_per_s)
    device = host.device
    pairs = [
        *(
            (f"rate of {dtype}", rate, peaks[dtype])
            for dtype, rate in device.flop_per_s
            if dtype in peaks
        ),
        ("memory", float(device.memory_bytes), float(host.peak.memory_bytes)),
        ("memory bandwidth", device.memory_bytes_per_s, host.peak.memory_bytes_per_s),
        ("bandwidth of the link", host.link.bytes_per_s, host.peak.link_bytes_per_s),
        ("bandwidth of the NIC", host.nic.bytes_per_s, host.peak.nic_bytes_per_s),
    ]
    for what, reached, peak in pairs:
        if reached > peak:
            raise ClusterError(
                f"{where}: the {what}, {reached:g}, is above its peak, {peak:g}; swap them or "
                "correct one"
            )
