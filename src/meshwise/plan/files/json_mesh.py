"""Logical meshes and layouts in JSON.

Layouts are written as `graph.layout` prints them.
"""

from __future__ import annotations

from meshwise.cluster.host import MAX_DEVICES
from meshwise.cluster.mesh import DeviceSpec, LogicalMesh, MeshAxis
from meshwise.graph.layout import Layout, layout_text, parse_layout
from meshwise.plan.files.forms import (
    COUNT,
    POSITIVE,
    RATE,
    SIZE,
    TEXT,
    Form,
    list_of,
    pair_of,
    record,
    wrong,
)
from meshwise.plan.files.json_read import Json

# Layouts name an axis by a digit.
_MOST_AXES = 10


def read_layout(value: Json, where: str) -> Layout:
    """Return the layout that a text says.

    Args:
        value: The text.
        where: Name of its field.

    Returns:
        The layout.

    Raises:
        PlanError: it is no text, or not that of a layout.
    """
    try:
        return parse_layout(TEXT.read(value, where))
    except ValueError as error:
        raise wrong(where, "a layout, as 'S0 R' or 'R sum:P1'", value) from error


LAYOUT = Form(read_layout, layout_text)
LAYOUTS = list_of(LAYOUT)
_AXIS = record(
    MeshAxis,
    {
        "name": TEXT,
        "size": COUNT,
        "latency_s": POSITIVE,
        "link_bytes_per_s": RATE,
        "exchange_bytes_per_s": RATE,
    },
    # Only where an all-to-all is slower than a ring.
    optional=("exchange_bytes_per_s",),
)
_DEVICE = record(
    DeviceSpec,
    {
        "name": TEXT,
        "memory_bytes": SIZE,
        "memory_bytes_per_s": RATE,
        "flop_per_s": list_of(pair_of(TEXT, RATE)),
        "source": TEXT,
        "dense_times": list_of(pair_of(TEXT, list_of(pair_of(POSITIVE, POSITIVE)))),
        "host_bytes_per_s": POSITIVE,
        "host_memory_bytes": SIZE,
    },
    # Only where it is known, as what `meshwise calibrate` measured.
    optional=("dense_times", "host_bytes_per_s", "host_memory_bytes"),
)
_ANY_MESH = record(LogicalMesh, {"axes": list_of(_AXIS), "device": _DEVICE})


def _read_mesh(value: Json, where: str) -> LogicalMesh:
    mesh = _ANY_MESH.read(value, where)
    if len(mesh.axes) > _MOST_AXES or mesh.num_devices > MAX_DEVICES:
        wanted = f"at most {_MOST_AXES} axes of at most {MAX_DEVICES} devices in all"
        raise wrong(f"{where}.axes", wanted, [axis.size for axis in mesh.axes])
    return mesh


MESH = Form(_read_mesh, _ANY_MESH.write)
