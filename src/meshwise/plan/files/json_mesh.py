"""Logical meshes and layouts in JSON, both ways.

Layouts are written as `graph.layout` prints them.
"""

from __future__ import annotations

from meshwise.cluster.mesh import DeviceSpec, LogicalMesh, MeshAxis
from meshwise.graph.layout import Layout, parse_layout
from meshwise.plan.files import json_read as read
from meshwise.plan.files.json_read import Json, Reader
from meshwise.plan.files.json_write import fields


def mesh_json(mesh: LogicalMesh) -> Json:
    """The mesh as JSON, which `read_mesh` reads back."""
    rates = [[dtype, float(rate)] for dtype, rate in mesh.device.flop_per_s]
    device = fields(mesh.device) | {"flop_per_s": rates}
    times = [
        [dtype, [[float(flop), float(seconds)] for flop, seconds in points]]
        for dtype, points in mesh.device.dense_times
    ]
    # Only where it was measured, as by `meshwise calibrate`.
    device = {key: value for key, value in device.items() if key != "dense_times"}
    if times:
        device["dense_times"] = times
    return {"axes": [fields(axis) for axis in mesh.axes], "device": device}


def read_layout(value: Json, where: str) -> Layout:
    """A layout."""
    try:
        return parse_layout(read.text(value, where))
    except ValueError as error:
        raise read.wrong(where, "a layout, as 'S0 R' or 'R sum:P1'", value) from error


def _device(value: Json, where: str) -> DeviceSpec:
    known: dict[str, Reader] = {
        "name": read.text,
        "memory_bytes": read.size,
        "memory_bytes_per_s": read.positive,
        "flop_per_s": read.list_of(read.pair_of(read.text, read.positive)),
        "source": read.text,
    }
    if isinstance(value, dict) and "dense_times" in value:
        points = read.list_of(read.pair_of(read.positive, read.positive))
        known["dense_times"] = read.list_of(read.pair_of(read.text, points))
    return read.record(value, where, DeviceSpec, known)


def _axis(value: Json, where: str) -> MeshAxis:
    known: dict[str, Reader] = {
        "name": read.text,
        "size": read.count,
        "latency_s": read.positive,
        "link_bytes_per_s": read.positive,
    }
    return read.record(value, where, MeshAxis, known)


def read_mesh(value: Json, where: str) -> LogicalMesh:
    """A logical mesh."""
    known: dict[str, Reader] = {"axes": read.list_of(_axis), "device": _device}
    return read.record(value, where, LogicalMesh, known)
