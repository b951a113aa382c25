"""The cases of AlpaComm's evaluation between two meshes, and random ones like them.

Source: AlpaComm section 5.1, repository of the paper (docs/facts.md section 3): p3.8xlarge, 4 V100
a host, NVLink inside, 10 Gb/s between hosts.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from meshwise.graph.layout import Layout, parse_layout
from meshwise.resharding.cross_mesh.host_tasks import HostTask, host_tasks, hosted_mesh
from meshwise.resharding.tiles import Box, boxes

# Ten gigabits a second.
NIC_BYTES_PER_S = 10e9 / 8
FLOAT32_BYTES = 4
_SHAPE = (1024, 1024, 512)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A tensor between two meshes.

    Attributes:
        name: For tables.
        shape: Of the tensor, in single precision.
        source: Hosts and devices of each.
        destination: Hosts and devices of each.
        before: Layout on the source.
        after: Layout on the destination.
    """

    name: str
    shape: tuple[int, ...]
    source: tuple[int, int]
    destination: tuple[int, int]
    before: Layout
    after: Layout

    @property
    def num_bytes(self) -> int:
        """Of the tensor."""
        return FLOAT32_BYTES * math.prod(self.shape)

    def tasks(self) -> tuple[HostTask, ...]:
        """Its unit tasks; the hosts of the destination follow those of the source."""
        source, destination = (
            hosted_mesh(*self.source),
            hosted_mesh(*self.destination, first_host=self.source[0]),
        )
        return host_tasks(
            self.shape, FLOAT32_BYTES, (self.before, source), (self.after, destination)
        )

    def placements(self) -> tuple[dict[int, Box], dict[int, Box], tuple[int, ...]]:
        """Return what each device of both sides holds, and the host of each device."""
        before = boxes(self.shape, self.before, self.source)
        after = boxes(self.shape, self.after, self.destination)
        meshes = (
            hosted_mesh(*self.source),
            hosted_mesh(*self.destination, first_host=self.source[0]),
        )
        hosts = (*meshes[0].hosts, *meshes[1].hosts)
        return dict(enumerate(before)), dict(enumerate(after, len(before))), hosts


def _case(
    name: str,
    source: tuple[int, int],
    destination: tuple[int, int],
    before: str,
    after: str,
    shape: tuple[int, ...] = _SHAPE,
) -> Case:
    return Case(
        name=name,
        shape=shape,
        source=source,
        destination=destination,
        before=parse_layout(before),
        after=parse_layout(after),
    )


# 7 and 8 are the same in the published suite.
CASES: Sequence[Case] = (
    _case("1", (2, 4), (2, 4), "S0 R R", "S0 R R"),
    _case("2", (2, 4), (2, 4), "R R R", "S0 R R"),
    _case("3", (2, 4), (2, 4), "R S0 R", "S0 R R"),
    _case("4", (2, 4), (2, 4), "R S01 R", "S01 R R"),
    _case("5", (2, 4), (2, 4), "S1 R R", "S0 R R"),
    _case("6", (2, 4), (3, 4), "S0 R R", "S0 R R", (3072, 1024, 170)),
    _case("7", (1, 4), (2, 4), "S1 R R", "R R R"),
    _case("8", (1, 4), (2, 4), "S1 R R", "R R R"),
    _case("9", (2, 4), (2, 4), "R S0 R", "R R S0"),
)
# One gigabyte (2^28 numbers) from one device.
ONE_TO_MANY: Sequence[Case] = tuple(
    _case(f"{hosts} x {devices}", (1, 1), (hosts, devices), "R", "R", (1 << 28,))
    for hosts, devices in ((1, 1), (1, 2), (1, 3), (1, 4), (2, 2), (3, 2), (4, 2))
)


def random_case(number: int) -> Case:
    """Return a case like the nine: up to 4 hosts of up to 4 devices, any layouts, any dims.

    Args:
        number: Which one; equal numbers give equal cases.
    """
    rng = random.Random(number)
    rank = rng.randint(1, 3)
    shape = tuple(rng.randint(4, 96) for _ in range(rank))
    meshes = [(rng.randint(1, 4), rng.randint(1, 4)) for _ in range(2)]
    layouts: list[Layout] = []
    for _ in meshes:
        homes = [rng.randint(-1, rank - 1) for _ in range(2)]
        axes = rng.sample(range(2), 2)
        layouts.append(
            Layout(tuple(tuple(a for a in axes if homes[a] == dim) for dim in range(rank)))
        )
    return Case(
        name=f"random {number}",
        shape=shape,
        source=meshes[0],
        destination=meshes[1],
        before=layouts[0],
        after=layouts[1],
    )
