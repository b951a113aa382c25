"""Pins of pipelines: what the user fixes, read from names and values; what contradicts what.

stages=4                 so many stages
stages=0-11,12-23        these layers are stages; layers that are not named stay free
microbatches=16          B
schedule=1f1b
submesh.0=1x8            hosts x devices of each, of stage 0; `1x8 on dgx-a100` on such hosts
mesh.1=2x4               logical mesh of stage 1
remat.-1=full            what the backward pass of the last stage computes again
remat=full               the same of every stage; so with submesh and mesh
mesh@7=2x4               of the stage that holds layer 7; so with submesh and remat
0/params/**/kernel=P(None, 'x')
                         layout of arguments by path and of activations by name, as `request.pins`
"""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from jax.sharding import PartitionSpec

from meshwise.errors import PinError, PlanError
from meshwise.inter.search.search_space import SearchOptions
from meshwise.inter.search.stage_pins import StagePin, without_ones
from meshwise.plan.stage import REMATS
from meshwise.request.pins import Pin, as_pin, spec_text
from meshwise.schedules.pipeline_schedule import PipelineSchedule as Schedule
from meshwise.schedules.registry import choices

_OF_PLAN = ("stages", "microbatches", "schedule")
_OF_STAGE = ("submesh", "mesh", "remat")
_STAGE_NAME = re.compile(r"(submesh|mesh|remat)(?:\.(-?\d+)|@(\d+))?", re.ASCII)
_SHAPE = re.compile(r"[1-9]\d*(?:x[1-9]\d*)*", re.ASCII)
_SUBMESH = re.compile(r"([1-9]\d*)x([1-9]\d*)(?: on (\S.*))?", re.ASCII)
_ENTRY = r"\([A-Za-z_]\w*(?:,[A-Za-z_]\w*)*,?\)|P\.UNCONSTRAINED|[A-Za-z_]\w*|[-?]"
_ENTRIES = re.compile(f"(?:(?:{_ENTRY})(?:,(?:{_ENTRY}))*,?)?", re.ASCII)
_RANGES = re.compile(r"\d+-\d+(?:,\d+-\d+)*", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinePin:
    """One thing that is fixed.

    Attributes:
        text: As the user wrote it.
        num_stages: Exactly so many.
        counts: Values of B that are left.
        schedule: The schedule.
        stage: What is fixed about a stage, or about all.
        number: Which stage that is, where it is given by its number; from the end if below 0.
        layout: Pattern, and what is fixed of the tensors that it names.
    """

    text: str
    num_stages: int | None = None
    counts: tuple[int, ...] | None = None
    schedule: Schedule | None = None
    stage: StagePin | None = None
    number: int | None = None
    layout: tuple[str, Pin] | None = None


def read_pins(pins: Mapping[str, object] | Sequence[tuple[str, object]]) -> tuple[PipelinePin, ...]:
    """Return pins from names and values.

    Args:
        pins: Names and values; values may be texts, as on a command line.

    Returns:
        The pins, each once.

    Raises:
        PinError: a name or a value is not understood.
    """
    pairs = list(pins.items()) if isinstance(pins, Mapping) else pins
    return tuple(dict.fromkeys(_read(name, value) for name, value in pairs))


def split_pin(text: str) -> tuple[str, str]:
    """Return name and value of `NAME=VALUE`.

    Args:
        text: What a user wrote on a command line.

    Returns:
        Both without spaces around.

    Raises:
        PinError: it has no `=`.
    """
    name, separator, value = text.partition("=")
    if not separator or not name.strip() or not value.strip():
        raise PinError(f"pin {text!r}: write it as NAME=VALUE, as stages=4 or remat.0=full")
    return name.strip(), value.strip()


def _read(name: str, value: object) -> PipelinePin:
    text = f"{name}={_shown(value)}"
    if name == "stages":
        if isinstance(value, int) or str(value).isdecimal():
            return PipelinePin(text=text, num_stages=_number(text, value))
        stage = StagePin(text=text, ranges=_ranges(text, value))
        return PipelinePin(text=text, stage=stage)
    if name == "microbatches":
        return PipelinePin(text=text, counts=(_number(text, value),))
    if name == "schedule":
        return PipelinePin(text=text, schedule=_schedule(text, value))
    match = _STAGE_NAME.fullmatch(name)
    if match is not None:
        stage = _stage(text, match[1], str(value))
        stage = dataclasses.replace(stage, layer=None if match[3] is None else int(match[3]))
        return PipelinePin(
            text=text, stage=stage, number=None if match[2] is None else int(match[2])
        )
    if re.fullmatch(r"[A-Za-z_]+(?:[.@].*)?", name) and isinstance(value, str | int):
        known = [*_OF_PLAN, *_OF_STAGE]
        near = difflib.get_close_matches(re.split(r"[.@]", name)[0], known, 1)
        raise PinError(
            f"pin {text!r}: nothing is called {name!r}; there are {', '.join(_OF_PLAN)}, and "
            f"{', '.join(_OF_STAGE)} with .STAGE or @LAYER, and paths of arguments"
            + (f"; did you mean {near[0]!r}?" if near else "")
        )
    pin = as_pin(name, layout_value(text, value) if isinstance(value, str) else value)
    return PipelinePin(text=text, layout=(name, pin))


def _shown(value: object) -> str:
    if isinstance(value, Schedule):
        return value.name
    return spec_text(value) if isinstance(value, PartitionSpec) else str(value)


def _number(text: str, value: object) -> int:
    number: object = int(str(value)) if str(value).isdecimal() else value
    if not isinstance(number, int) or isinstance(value, bool) or number < 1:
        raise PinError(f"pin {text!r}: it must be a number of at least 1")
    return number


def _ranges(text: str, value: object) -> tuple[tuple[int, int], ...]:
    if not isinstance(value, str) or not _RANGES.fullmatch(value):
        raise PinError(f"pin {text!r}: write a number of stages, or their layers as 0-11,12-23")
    ranges: list[tuple[int, int]] = []
    for part in value.split(","):
        low, _, high = part.partition("-")
        ranges.append((int(low), int(high)))
        if int(high) < int(low):
            raise PinError(f"pin {text!r}: layers {part} end before they begin")
    ranges.sort()
    for one, two in itertools.pairwise(ranges):
        if two[0] <= one[1]:
            raise PinError(f"pin {text!r}: layer {two[0]} stands in two stages; name it once")
    return tuple(ranges)


def _schedule(text: str, value: object) -> Schedule:
    if isinstance(value, Schedule):
        return value
    value = str(value)
    if value not in choices():
        raise PinError(f"pin {text!r}: there is no such schedule; there are {', '.join(choices())}")
    if choices()[value].chunks > 1:
        raise PinError(
            f"pin {text!r}: this schedule does not go together with pins yet; ask for it with "
            f"--schedule {value} or Auto(schedule={value!r}), without pins"
        )
    return choices()[value]


def _stage(text: str, what: str, value: str) -> StagePin:
    if what == "remat":
        for remat in REMATS:
            if remat == value:
                return StagePin(text=text, remat=remat)
        raise PinError(f"pin {text!r}: remat is one of {', '.join(REMATS)}")
    if what == "mesh":
        if not _SHAPE.fullmatch(value):
            raise PinError(f"pin {text!r}: write the sizes of a logical mesh, as 2x4")
        return StagePin(text=text, mesh=without_ones([int(n) for n in value.split("x")]))
    match = _SUBMESH.fullmatch(value)
    if match is None:
        raise PinError(f"pin {text!r}: write hosts x devices of each, as 1x8, or 1x8 on dgx-a100")
    return StagePin(text=text, submesh=(int(match[1]), int(match[2])), host=match[3])


def layout_value(text: str, value: str) -> Pin:
    """`P(None, 'x')`, `P(-, (x, y))` or `forbid(y)` as a pin of a layout.

    Raises:
        PinError: it is none of these.
    """
    match = re.fullmatch(r"(P|forbid)\((.*)\)", value.strip())
    inner = "" if match is None else re.sub(r"\s*([(),])\s*", r"\1", match[2].strip())
    inner = re.sub(r"['\"]", "", inner)
    if match is None or not _ENTRIES.fullmatch(inner):
        raise PinError(
            f"pin {text!r}: write a layout as P(None, 'x'), or forbid(x); ? leaves a dim free"
        )
    entries: list[str | tuple[str, ...]] = [
        tuple(word.strip("()").strip(",").split(",")) if word.startswith("(") else word
        for word in re.findall(_ENTRY, inner)
    ]
    if match[1] == "forbid":
        return Pin(forbid=cast(tuple[str, ...], tuple(entries)))
    kept = {"-": None, "None": None, "?": PartitionSpec.UNCONSTRAINED}
    kept["P.UNCONSTRAINED"] = PartitionSpec.UNCONSTRAINED
    return Pin(PartitionSpec(*(e if isinstance(e, tuple) else kept.get(e, e) for e in entries)))


def resolved(pins: Sequence[PipelinePin], num_layers: int) -> tuple[PipelinePin, ...]:
    """Return the pins of stages by number as pins of the stage that holds some layer.

    Args:
        pins: What is fixed.
        num_layers: L.

    Raises:
        PlanError: a layer or a stage is not there, or it is not known which layers a stage holds.
    """
    for pin in pins:
        if pin.stage is not None:
            named = [n for pair in pin.stage.ranges for n in pair]
            named += [] if pin.stage.layer is None else [pin.stage.layer]
            if named and max(named) >= num_layers:
                raise PlanError(
                    f"pin {pin.text!r}: there is no layer {max(named)}; the step was cut into "
                    f"layers 0 to {num_layers - 1}, with another number of layers into others"
                )
    known = _known_stages(pins, num_layers)
    return tuple(
        pin
        if pin.number is None or pin.stage is None
        else dataclasses.replace(
            pin,
            number=None,
            stage=dataclasses.replace(pin.stage, layer=_layer_of(pin, pin.number, known)),
        )
        for pin in pins
    )


def _known_stages(pins: Sequence[PipelinePin], num_layers: int) -> dict[int, int]:
    """Return a layer of each stage whose layers are known, by the stage's number."""
    known = {0: 0, -1: num_layers - 1}
    ranges = sorted({r for p in pins if p.stage is not None for r in p.stage.ranges})
    end = 0
    for number, (low, high) in enumerate(ranges):
        if low != end:
            break
        known[number] = low
        end = high + 1
    counts = {p.num_stages for p in pins if p.num_stages is not None}
    if end == num_layers:
        counts.add(len(ranges))
    if len(counts) == 1:
        count = counts.pop()
        known[count - 1] = num_layers - 1
        known[-count] = 0
    return known


def _layer_of(pin: PipelinePin, number: int, known: Mapping[int, int]) -> int:
    if number in known:
        return known[number]
    what = pin.text.partition(".")[0]
    raise PlanError(
        f"pin {pin.text!r}: the layers of stage {number} are not known; pin them as stages=0-11,"
        f"12-23, or name the stage by a layer that it holds, as {what}@12=..."
    )


def with_pins(options: SearchOptions, pins: Sequence[PipelinePin]) -> SearchOptions | None:
    """Return options of a search that keep to pins.

    Args:
        options: The options, pins apart.
        pins: What is fixed.

    Returns:
        The options; None where two pins of one thing differ.
    """
    stages = {p.num_stages for p in pins if p.num_stages is not None}
    schedules = {p.schedule for p in pins if p.schedule is not None}
    counts = options.num_microbatches
    for allowed in (p.counts for p in pins):
        if allowed is not None:
            counts = allowed if counts is None else tuple(c for c in counts if c in allowed)
    layouts = [p.layout[0] for p in pins if p.layout is not None]
    if len(stages) > 1 or len(schedules) > 1 or counts == () or len(set(layouts)) < len(layouts):
        return None
    of_stages = tuple(p.stage for p in pins if p.stage is not None)
    asked = {p.remat for p in of_stages} - set(options.remats)
    return dataclasses.replace(
        options,
        num_stages=next(iter(stages), options.num_stages),
        schedules=tuple(schedules) or options.schedules,
        num_microbatches=counts,
        remats=(*options.remats, *(r for r in REMATS if r in asked)),
        pins=of_stages,
    )


def layouts_of(pins: Sequence[PipelinePin]) -> dict[str, Pin]:
    """Return the pins of layouts, by pattern.

    Args:
        pins: All pins.
    """
    return dict(p.layout for p in pins if p.layout is not None)
