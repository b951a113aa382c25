"""Every distinct tile crosses once: who sends which piece to whom, and what goes on from there.

Of the devices that need one and the same tile, one is its *home*.  The home is sent the pieces of
the tile that it does not hold already, puts them together, and the others copy the tile from it.
So what passes between the meshes is each tile once, and copies are made inside the destination.
Senders and homes are chosen so that none has much more to do than another.

Source: docs/facts.md section 3; Alpa section 6 has each copy sent, or parts of it gathered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from meshwise.resharding.tiles import Box, holders, num_elements, overlap


class SentPiece(NamedTuple):
    """A part of a tile.

    Attributes:
        box: The elements.
        sender: The device that has them.
    """

    box: Box
    sender: int


class HomedTile(NamedTuple):
    """A distinct tile of the destination.

    Attributes:
        box: The elements.
        home: Device that puts it together.
        pieces: Its parts, ascending by place: they form a grid.  The home sends to itself what it
            holds.
        copies: Devices that copy it from the home.
        owners: Other devices that hold exactly this tile already.
    """

    box: Box
    home: int
    pieces: tuple[SentPiece, ...]
    copies: tuple[int, ...]
    owners: tuple[int, ...]

    @property
    def crossing_elements(self) -> int:
        """Elements that the home is sent by others."""
        return sum(num_elements(p.box) for p in self.pieces if p.sender != self.home)


def homed_tiles(source: Mapping[int, Box], destination: Mapping[int, Box]) -> tuple[HomedTile, ...]:
    """Return how every device of the destination gets its tile.

    Devices are the same on both sides where their numbers are: what one holds is not sent to it.

    Args:
        source: The box that each device holds; together they are the whole tensor.
        destination: The box that each device needs.
    """
    given = holders(source)
    received: dict[int, int] = {}
    sent: dict[int, int] = {}
    found: list[HomedTile] = []
    for tile, needing in holders(destination).items():
        parts = {
            box: who for part, who in given.items() if num_elements(box := overlap(tile, part))
        }
        home = min(needing, key=lambda d: (_missing(tile, source.get(d)), received.get(d, 0), d))
        pieces: list[SentPiece] = []
        for box in sorted(parts):
            who = parts[box]
            sender = home if home in who else min(who, key=lambda d: (sent.get(d, 0), d))
            if sender != home:
                sent[sender] = sent.get(sender, 0) + num_elements(box)
                received[home] = received.get(home, 0) + num_elements(box)
            pieces.append(SentPiece(box, sender))
        others = [d for d in needing if d != home]
        owners = tuple(d for d in others if source.get(d) == tile)
        copies = tuple(d for d in others if d not in owners)
        found.append(HomedTile(tile, home, tuple(pieces), copies, owners))
    return tuple(found)


def _missing(tile: Box, held: Box | None) -> int:
    """Return the elements of a tile that a device does not hold."""
    return num_elements(tile) - (num_elements(overlap(tile, held)) if held is not None else 0)
