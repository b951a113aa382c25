"""What passes from one mesh to another, by the way it is sent.

The tensor lies on the destination in `num_parts` distinct tiles, and each tile on `copies`
devices there.  With M bytes in all:

- a signal: one byte, the bound of what any way can save;
- send/recv: every device is sent what it needs, `copies * M` bytes;
- all-gather: each device is sent an equal part of its tile, so that M bytes pass, and those with
  the same tile put it together among themselves.  Where the links between some of them are no
  faster than those between the meshes, they are sent it too.

Source: Alpa section 6 and figure 11; docs/facts.md sections 3 and 6.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from meshwise.cluster.mesh import LogicalMesh
from meshwise.graph.layout import Layout
from meshwise.resharding.between import copied_axes, gather_s
from meshwise.resharding.cross_mesh.strategies import GATHERED, SEND_RECV

SIGNAL = "signal"
WAYS: Mapping[str, str] = MappingProxyType(
    {
        SIGNAL: "one byte",
        SEND_RECV: "every device is sent what it needs",
        GATHERED: "distinct tiles are sent, and gathered in the destination",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Passing:
    """What one tensor takes.

    Attributes:
        crossing_bytes: Between the meshes.
        gather_s: On the destination, after that.
    """

    crossing_bytes: float
    gather_s: float = 0.0


def passing(
    way: str, num_bytes: int, layout: Layout, mesh: LogicalMesh, bytes_per_s: float
) -> Passing:
    """What a tensor takes that comes from another mesh.

    Args:
        way: One of `WAYS`.
        num_bytes: Of the whole tensor.
        layout: On the destination, nothing partial.
        mesh: The destination.
        bytes_per_s: Between the meshes.

    Raises:
        ValueError: there is no such way, or the layout is partial.
    """
    if layout.partial:
        raise ValueError(f"a partial value cannot arrive: {layout}")
    same = copied_axes(layout, mesh)
    match way:
        case "signal":
            return Passing(crossing_bytes=1.0)
        case "send/recv":
            return _gathered(num_bytes, layout, mesh, same, ())
        case "local all-gather":
            # The last of all ways gathers everything.
            ways = itertools.chain.from_iterable(
                itertools.combinations(same, n) for n in range(len(same) + 1)
            )
            found = [_gathered(num_bytes, layout, mesh, same, axes) for axes in ways]
            return min(found, key=lambda p: p.crossing_bytes / bytes_per_s + p.gather_s)
        case _:
            raise ValueError(f"no way {way!r} to send; there are {', '.join(WAYS)}")


def _gathered(
    num_bytes: int, layout: Layout, mesh: LogicalMesh, same: tuple[int, ...], axes: tuple[int, ...]
) -> Passing:
    """Return what it takes if the copies along some axes are gathered, the others sent.

    Args:
        num_bytes: Bytes of the whole tensor.
        layout: Its layout on the destination.
        mesh: The destination.
        same: Axes along which devices hold the same.
        axes: Those of them along which it is gathered.
    """
    sent = math.prod(mesh.sizes[a] for a in same if a not in axes)
    return Passing(
        crossing_bytes=float(num_bytes * sent), gather_s=gather_s(num_bytes, layout, mesh, axes)
    )
