"""The verifier of routes: what a device does there it can do, and in the end it has its tile."""

from __future__ import annotations

import math
from collections.abc import Mapping

from meshwise.errors import ProgramError
from meshwise.resharding.route import Cut, Join, Move, Phase, Route
from meshwise.resharding.tiles import Box, box_shape, num_elements, overlap, within


def verify_route(route: Route, source: Mapping[int, Box], destination: Mapping[int, Box]) -> None:
    """Check that each value is made once and before its use, where it is used, and what it is.

    Moves of one phase take what phases before it made, and what its cuts make.

    Args:
        route: The route.
        source: The box that each device holds.
        destination: The box that each device needs.

    Raises:
        ProgramError: something of that does not hold.
    """
    verifier = _Verifier()
    for device, value in route.held.items():
        if device not in source:
            raise ProgramError(f"device {device} holds value {value}, and is not of the source")
        verifier.add(value, device, source[device])
    for phase in route.phases:
        verifier.phase(phase)
    for device, box in destination.items():
        if num_elements(box):
            if device not in route.shards:
                raise ProgramError(f"device {device} is of the destination, and gets no tile")
            found = verifier.box_at(route.shards[device], device, "ends with")
            if found != box:
                raise ProgramError(f"device {device} ends with {found}, and needs {box}")


class _Verifier:
    """The values made so far: for each its device and which elements of the tensor it has."""

    def __init__(self) -> None:
        self.made: dict[int, tuple[int, Box]] = {}

    def add(self, value: int, device: int, box: Box) -> None:
        if value in self.made:
            raise ProgramError(f"value {value} is made twice, the second time on device {device}")
        self.made[value] = device, box

    def box_at(self, value: int, device: int, verb: str) -> Box:
        """Return the elements of a value that must be on a device."""
        if value not in self.made:
            raise ProgramError(f"device {device} {verb} value {value} before it is made")
        there, box = self.made[value]
        if there != device:
            raise ProgramError(f"device {device} {verb} value {value}, which is on device {there}")
        return box

    def phase(self, phase: Phase) -> None:
        for cut in phase.cuts:
            self.cut(cut)
        self.moves(phase)
        for join in phase.joins:
            self.join(join)

    def cut(self, cut: Cut) -> None:
        whole = self.box_at(cut.value, cut.device, "cuts")
        for value in cut.after:
            self.box_at(value, cut.device, "waits for")
        for part, result in zip(cut.parts, cut.results, strict=True):
            inside = within(whole, whole)
            if not num_elements(part) or overlap(part, inside) != part:
                raise ProgramError(f"device {cut.device} cuts {part} out of {inside}")
            box = tuple(
                (first + a, first + b) for (a, b), (first, _) in zip(part, whole, strict=True)
            )
            self.add(result, cut.device, box)

    def moves(self, phase: Phase) -> None:
        sent = [*phase.moves, *phase.signals]
        boxes = [self.box_at(each.value, each.source, "sends") for each in sent]
        for each, box in zip(sent, boxes, strict=True):
            shape = box_shape(box)
            fits = each.shape == shape if isinstance(each, Move) else each.rank == len(shape)
            if each.source == each.destination or not fits:
                raise ProgramError(f"{each} is of a value of shape {shape}")
            is_whole = isinstance(each, Move)
            found = box if is_whole else tuple((start, start + 1) for start, _ in box)
            self.add(each.result, each.destination, found)

    def join(self, join: Join) -> None:
        boxes = [self.box_at(value, join.device, "joins") for value in join.values]
        rank = len(boxes[0])
        whole = tuple(
            (min(box[dim][0] for box in boxes), max(box[dim][1] for box in boxes))
            for dim in range(rank)
        )
        if tuple(within(box, whole) for box in boxes) != join.places:
            raise ProgramError(f"device {join.device} joins {boxes} at {join.places}")
        is_apart = not any(
            num_elements(overlap(one, other)) for n, one in enumerate(boxes) for other in boxes[:n]
        )
        if not is_apart or math.fsum(map(num_elements, boxes)) != num_elements(whole):
            raise ProgramError(f"device {join.device} joins {boxes}, which are not {whole} once")
        self.add(join.result, join.device, whole)
