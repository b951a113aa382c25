"""What a mesh does with a tensor that another mesh sent: it gathers the copies.

Each device is sent an equal part of its tile, so that the tensor passes once, and devices with the
same tile put it together among themselves.

Source: Alpa section 6 (local all-gather); docs/facts.md section 3.
"""

from __future__ import annotations

from meshwise.cluster.collectives import ALL_GATHER, collective_time_s
from meshwise.cluster.mesh import LogicalMesh
from meshwise.graph.layout import Layout, num_parts, used_axes


def gather_s(
    num_bytes: int, layout: Layout, mesh: LogicalMesh, axes: tuple[int, ...] | None = None
) -> float:
    """Return the seconds to gather the copies of a tensor that came once.

    Args:
        num_bytes: Bytes of the whole tensor.
        layout: Its layout on the destination, nothing partial.
        mesh: The destination.
        axes: The axes along which it is gathered; by default all along which devices hold the same.
    """
    along = copied_axes(layout, mesh) if axes is None else axes
    tile = -(-num_bytes // num_parts(layout, mesh.sizes))
    return collective_time_s(ALL_GATHER, along, tile, mesh) if along else 0.0


def copied_axes(layout: Layout, mesh: LogicalMesh) -> tuple[int, ...]:
    """Return the axes along which devices hold the same tile.

    Args:
        layout: A layout on the mesh.
        mesh: The mesh.
    """
    split = used_axes(layout)
    return tuple(a for a, size in enumerate(mesh.sizes) if a not in split and size > 1)
