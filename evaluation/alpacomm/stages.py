"""Stages of a planned pipeline with what is needed to send between them in other ways."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

from meshwise.graph.layout import Layout, layout_text, parse_layout
from meshwise.simulate.chunks import Chunk

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage.

    Attributes:
        chunk: Its costs.
        first_host: Number of its first host.
        submesh: Hosts, devices of each: all that they have.
        mesh: Sizes of its logical mesh.
        enters: Layout of the rows of what comes from the stage before, with the axes of all other
            dims on a second one.
        leaves: The same of what goes to the next stage.
        send_bytes: Of one micro-batch, to the next stage.
    """

    chunk: Chunk
    first_host: int
    submesh: tuple[int, int]
    mesh: tuple[int, ...]
    enters: Layout
    leaves: Layout
    send_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStages:
    """A pipeline.

    Attributes:
        setting: Its name.
        model: What is trained.
        cluster: As `Cluster.virtual` takes it.
        plan: Where stages and layouts come from, for people.
        num_microbatches: B.
        rows: Of one micro-batch.
        stages: In order.
        created: Date of the plan.
    """

    setting: str
    model: str
    cluster: str
    plan: str
    num_microbatches: int
    rows: int
    stages: tuple[Stage, ...]
    created: str

    def to_json(self) -> str:
        """As a file has it."""
        data = dataclasses.asdict(self)
        for stage, given in zip(data["stages"], self.stages, strict=True):
            stage["enters"], stage["leaves"] = map(layout_text, (given.enters, given.leaves))
        return json.dumps({"format": FORMAT, **data}, indent=1, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str) -> PlannedStages:
        """Read `to_json`.

        Raises:
            ValueError: it is something else.
        """
        try:
            data: dict[str, Any] = json.loads(text)
            if data.pop("format", None) != FORMAT:
                raise ValueError(f"not of format {FORMAT}")
            stages = tuple(map(_stage, data.pop("stages")))
            return cls(stages=stages, **data)
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"not a planned pipeline: {error}") from error


def _stage(data: dict[str, Any]) -> Stage:
    return Stage(
        chunk=Chunk(**data["chunk"]),
        first_host=data["first_host"],
        submesh=tuple(data["submesh"]),
        mesh=tuple(data["mesh"]),
        enters=parse_layout(data["enters"]),
        leaves=parse_layout(data["leaves"]),
        send_bytes=data["send_bytes"],
    )


def in_two_dims(layout: Layout) -> Layout:
    """Rows, and all else as one dim."""
    rows, *rest = layout.dims or ((),)
    return Layout((rows, tuple(axis for axes in rest for axis in axes)))
