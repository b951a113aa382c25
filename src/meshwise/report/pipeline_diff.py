"""What differs between two pipelines."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TypeAlias

from meshwise.inter.pipeline_plan import (
    LayerPlan,
    PipelinePlan,
    PipelineStage,
    WeightGradients,
)
from meshwise.plan.columns import layout_spec
from meshwise.plan.contents import pattern
from meshwise.report.difference import Difference, Section, changed, sections
from meshwise.units import seconds_text

Layouts: TypeAlias = dict[str, str]


def pipeline_differences(first: PipelinePlan, second: PipelinePlan) -> tuple[Section, ...]:
    """Sections of what differs; none if the plans are equal."""
    if first == second:
        return ()
    found = sections(
        ("Planned", _requests(first, second)),
        ("A step", _totals(first, second)),
        ("Step time by number of micro-batches", _tried(first, second)),
        ("Stages", _stages(first, second)),
        ("Layouts by layer", _layouts(first, second)),
    )
    return found or sections(
        ("Different", [Difference(what="numbers", first="", second="differs")])
    )


def _requests(first: PipelinePlan, second: PipelinePlan) -> list[Difference]:
    rows = changed(
        [
            ("model", first.model, second.model),
            ("cluster", first.cluster.name, second.cluster.name),
            ("batch", first.batch_size, second.batch_size),
            ("micro-batches", first.num_microbatches, second.num_microbatches),
            ("schedule", first.schedule, second.schedule),
            ("transfers", _transfers(first), _transfers(second)),
            ("delays of weights", _delays(first), _delays(second)),
            ("stages", len(first.stages), len(second.stages)),
            ("shared by layers", ", ".join(first.tied), ", ".join(second.tied)),
            ("space", first.space, second.space),
        ]
    )
    if first.cluster != second.cluster and first.cluster.name == second.cluster.name:
        text = "other hosts, links or memory"
        rows.append(Difference(what="cluster", first=first.cluster.name, second=text))
    return rows


def _transfers(plan: PipelinePlan) -> str:
    return "beside computation" if plan.hides_transfers else "stages wait"


def _delays(plan: PipelinePlan) -> str:
    return " ".join(map(str, plan.delays)) or "as the schedule"


def _totals(first: PipelinePlan, second: PipelinePlan) -> list[Difference]:
    return [
        *changed(
            [
                ("predicted", first.step_time_s, second.step_time_s),
                ("simulated", first.simulated_s, second.simulated_s),
                ("waiting for transfers", first.exposed_s, second.exposed_s),
                ("bound", first.bound_s, second.bound_s),
            ],
            "s",
        ),
        *changed([("bubble", first.bubble_share, second.bubble_share)], "share"),
        *changed([("peak memory", first.peak_bytes, second.peak_bytes)], "bytes"),
        *changed([("forward work", first.step_flop, second.step_flop)], "FLOP"),
    ]


def _tried(first: PipelinePlan, second: PipelinePlan) -> list[Difference]:
    one, two = dict(first.tried), dict(second.tried)
    return changed(
        [
            (str(count), _tried_text(one.get(count)), _tried_text(two.get(count)))
            for count in sorted({**one, **two})
        ]
    )


def _tried_text(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return seconds_text(seconds) if seconds < float("inf") else "nothing faster"


def _stages(first: PipelinePlan, second: PipelinePlan) -> list[Difference]:
    rows: list[Difference] = []
    for k, (a, b) in enumerate(itertools.zip_longest(first.stages, second.stages)):
        if a is None or b is None:
            rows.append(Difference(what=f"{k}", first=_stage_text(a), second=_stage_text(b)))
        else:
            rows += _stage(k, a, b)
    return rows


def _stage_text(stage: PipelineStage | None) -> str | None:
    if stage is None:
        return None
    return (
        f"layers {_layers(stage)}, devices {_devices(stage)}, {_mesh(stage)}, remat {stage.remat}"
    )


def _late(stage: PipelineStage) -> WeightGradients:
    return stage.weights or WeightGradients(seconds=0.0, held_bytes=0, waiting=0)


def _stage(number: int, a: PipelineStage, b: PipelineStage) -> list[Difference]:
    rows = [
        *changed(
            [
                ("layers", _layers(a), _layers(b)),
                ("submesh", f"{a.submesh}", f"{b.submesh}"),
                ("devices", _devices(a), _devices(b)),
                ("mesh", _mesh(a), _mesh(b)),
                ("remat", a.remat, b.remat),
                ("in flight", a.in_flight, b.in_flight),
                ("in flight until weights", _late(a).waiting, _late(b).waiting),
            ]
        ),
        *changed(
            [
                ("forward", a.forward_s, b.forward_s),
                ("backward", a.backward_s, b.backward_s),
                ("gathers", a.gather_s, b.gather_s),
                ("weights apart", _late(a).seconds, _late(b).seconds),
                ("once", a.once_s, b.once_s),
            ],
            "s",
        ),
        *changed(
            [
                ("resident", a.resident_bytes, b.resident_bytes),
                ("of a micro-batch", a.microbatch_bytes, b.microbatch_bytes),
                ("of one until weights", _late(a).held_bytes, _late(b).held_bytes),
                ("temporary", a.temporary_bytes, b.temporary_bytes),
                ("peak", a.peak_bytes, b.peak_bytes),
                ("of a device", a.memory_bytes, b.memory_bytes),
                ("sends", a.send_bytes, b.send_bytes),
            ],
            "bytes",
        ),
    ]
    return [dataclasses.replace(row, what=f"{number} {row.what}") for row in rows]


def _layers(stage: PipelineStage) -> str:
    return _range(stage.first_layer, stage.last_layer)


def _devices(stage: PipelineStage) -> str:
    return _range(stage.first_device, stage.first_device + stage.num_devices - 1)


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _mesh(stage: PipelineStage) -> str:
    return "x".join(map(str, stage.mesh.sizes))


def _layouts(first: PipelinePlan, second: PipelinePlan) -> list[Difference]:
    """Inputs of layers; those that differ only in numbers, of layers too, share a row."""
    one, two = _by_layer(first), _by_layer(second)
    groups: dict[tuple[str, str | None, str | None], list[int]] = {}
    for number in sorted({**one, **two}):
        a, b = one.get(number, {}), two.get(number, {})
        for name in [*a, *(name for name in b if name not in a)]:
            if a.get(name) != b.get(name):
                key = (pattern(name), a.get(name), b.get(name))
                groups.setdefault(key, []).append(number)
    return [
        Difference(what=f"{what} in {_ranges(numbers)}", first=a, second=b, count=len(numbers))
        for (what, a, b), numbers in groups.items()
    ]


def _by_layer(plan: PipelinePlan) -> dict[int, Layouts]:
    return {layer.layer: _specs(layer, stage) for stage in plan.stages for layer in stage.layers}


def _specs(layer: LayerPlan, stage: PipelineStage) -> Layouts:
    """A layout with the sizes of the axes that it uses; other sizes are another layout."""
    found: Layouts = {}
    for name, shape, layout in layer.inputs:
        axes = [a for axes in layout.dims for a in axes]
        sizes = " ".join(f"{stage.mesh.names[a]}={stage.mesh.sizes[a]}" for a in axes)
        spec = f"{layout_spec(layout, stage.mesh.names)} {sizes}".rstrip()
        found[name] = f"{'x'.join(map(str, shape))} {spec}"
    return found


def _ranges(numbers: list[int]) -> str:
    """`0-11, 14`."""
    parts: list[str] = []
    for _, run in itertools.groupby(
        enumerate(dict.fromkeys(numbers)), lambda item: item[1] - item[0]
    ):
        found = [number for _, number in run]
        parts.append(str(found[0]) if len(found) == 1 else f"{found[0]}-{found[-1]}")
    return ", ".join(parts)
