"""What differs between two plans."""

from __future__ import annotations

import dataclasses
import itertools
import json
from typing import TypeAlias

from meshwise.plan.counts.collectives import collective_sums
from meshwise.plan.counts.contents import pattern
from meshwise.plan.files.json_read import Json
from meshwise.plan.plan import Plan
from meshwise.plan.stage import Layer, Stage, WeightGradients
from meshwise.plan.text.columns import (
    place_text,
    ranges_text,
    type_text,
    way_text,
)
from meshwise.plan.text.explain import mesh_text
from meshwise.report.difference import Difference, Section, changed, sections
from meshwise.units import bytes_text, range_text, seconds_text

Layouts: TypeAlias = dict[str, str]


# Fields of the file that a section shows; all others are only named.
_SHOWN = {
    "step_time_s", "formula_s", "exposed_s", "bubble_share", "peak_bytes", "device_flop",
    "step_flop", "collectives", "batch_size", "num_microbatches", "schedule", "hides_transfers",
    "transfers", "delays", "tried", "tied", "model", "cluster", "method", "objective", "gap",
    "space", "status", "fingerprint", "stages",
}  # fmt: skip


def plan_differences(first: Plan, second: Plan) -> tuple[Section, ...]:
    """Return sections of what differs; none if the plans are equal."""
    first, second = _told_alike(first, second)
    if first == second:
        return ()
    pairs = list(itertools.zip_longest(first.stages, second.stages))
    found = sections(
        ("Planned", _requests(first, second)),
        ("A step", _totals(first, second)),
        ("Step time by number of micro-batches", _tried(first, second)),
        ("Stages", _stages(first, second)),
        ("Layouts", _layouts(first, second)),
        ("Dense products and convolutions", [row for a, b in pairs for row in _dense(a, b)]),
        ("Collectives in a step (count, bytes, seconds)", _collectives(first, second)),
        ("Also different, see `meshwise explain`", _others(first, second)),
    )
    return found or sections(
        ("Different", [Difference(what="numbers", first="", second="differs")])
    )


def _told_alike(first: Plan, second: Plan) -> tuple[Plan, Plan]:
    """Return the plans without sums of gradients where one, as an older file, has none apart."""
    plans = (first, second)
    if all(any(s.gradient_bytes is not None for s in plan.stages) for plan in plans):
        return plans
    first, second = (
        dataclasses.replace(
            plan,
            stages=tuple(dataclasses.replace(s, gradient_bytes=None) for s in plan.stages),
        )
        for plan in plans
    )
    return first, second


def _requests(first: Plan, second: Plan) -> list[Difference]:
    rows = changed(
        [
            ("model", first.model, second.model),
            ("method", first.method, second.method),
            ("objective", first.objective, second.objective),
            ("cluster", _cluster(first), _cluster(second)),
            ("batch", first.batch_size, second.batch_size),
            ("micro-batches", first.num_microbatches, second.num_microbatches),
            ("schedule", first.schedule, second.schedule),
            ("transfers", _transfers(first), _transfers(second)),
            ("delays of weights", _delays(first), _delays(second)),
            ("stages", len(first.stages), len(second.stages)),
            ("shared by layers", ", ".join(first.tied), ", ".join(second.tied)),
            ("status", first.status, second.status),
            ("space", first.space, second.space),
            ("step (fingerprint)", first.fingerprint, second.fingerprint),
        ]
    )
    if first.cluster != second.cluster and _cluster(first) == _cluster(second):
        text = "other hosts, links or memory"
        rows.append(Difference(what="cluster", first=_cluster(first), second=text))
    return rows


def _cluster(plan: Plan) -> str:
    return "not said" if plan.cluster is None else plan.cluster.name


def _transfers(plan: Plan) -> str:
    way = f", {plan.transfers}" if plan.transfers else ""
    return ("beside computation" if plan.hides_transfers else "stages wait") + way


def _delays(plan: Plan) -> str:
    return " ".join(map(str, plan.delays)) or "as the schedule"


def _totals(first: Plan, second: Plan) -> list[Difference]:
    return [
        *changed(
            [
                ("step time", first.step_time_s, second.step_time_s),
                ("by the formula of the search", first.formula_s, second.formula_s),
                ("waiting for transfers", first.exposed_s, second.exposed_s),
            ],
            "s",
        ),
        *changed(
            [
                ("bubble", first.bubble_share, second.bubble_share),
                ("gap", first.gap, second.gap),
            ],
            "share",
        ),
        *changed([("peak memory", first.peak_bytes, second.peak_bytes)], "bytes"),
        *changed(
            [
                ("forward work", first.step_flop, second.step_flop),
                ("dense work", first.device_flop, second.device_flop),
            ],
            "FLOP",
        ),
    ]


def _tried(first: Plan, second: Plan) -> list[Difference]:
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


def _stages(first: Plan, second: Plan) -> list[Difference]:
    rows: list[Difference] = []
    for k, (a, b) in enumerate(itertools.zip_longest(first.stages, second.stages)):
        if a is None or b is None:
            rows.append(Difference(what=f"{k}", first=_stage_text(a), second=_stage_text(b)))
        else:
            rows += _stage(k, a, b)
    return rows


def _stage_text(stage: Stage | None) -> str | None:
    if stage is None:
        return None
    where = f"devices {_devices(stage)}, {mesh_text(stage.mesh)}"
    return f"layers {_layers(stage)}, {where}, remat {stage.remat}"


def _late(stage: Stage) -> WeightGradients:
    return stage.weights or WeightGradients(seconds=0.0, held_bytes=0, waiting=0)


def _stage(number: int, a: Stage, b: Stage) -> list[Difference]:
    rows = [
        *changed(
            [
                ("layers", _layers(a), _layers(b)),
                ("submesh", f"{a.submesh}", f"{b.submesh}"),
                ("devices", _devices(a), _devices(b)),
                ("mesh", mesh_text(a.mesh), mesh_text(b.mesh)),
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
                ("sums of gradients", a.gradient_bytes, b.gradient_bytes),
                ("of a micro-batch", a.microbatch_bytes, b.microbatch_bytes),
                ("of one until weights", _late(a).held_bytes, _late(b).held_bytes),
                ("waiting", a.waiting_bytes, b.waiting_bytes),
                ("temporary", a.temporary_bytes, b.temporary_bytes),
                ("peak", a.peak_bytes, b.peak_bytes),
                ("of a device", a.memory_bytes, b.memory_bytes),
                ("sends", a.send_bytes, b.send_bytes),
            ],
            "bytes",
        ),
    ]
    return [dataclasses.replace(row, what=f"{number} {row.what}") for row in rows]


def _layers(stage: Stage) -> str:
    return range_text(stage.first_layer, stage.last_layer)


def _devices(stage: Stage) -> str:
    return range_text(stage.first_device, stage.first_device + stage.num_devices - 1)


def _layouts(first: Plan, second: Plan) -> list[Difference]:
    """Return arguments of layers; those that differ only in numbers share a row."""
    one, two = _by_layer(first), _by_layer(second)
    has_layers = max(len(one), len(two)) > 1
    groups: dict[tuple[str, str | None, str | None], list[tuple[int, str]]] = {}
    for number in sorted({**one, **two}):
        a, b = one.get(number, {}), two.get(number, {})
        for name in [*a, *(name for name in b if name not in a)]:
            if a.get(name) != b.get(name):
                key = (pattern(name), a.get(name), b.get(name))
                groups.setdefault(key, []).append((number, name))
    return [
        Difference(
            what=f"{what} in {ranges_text(number for number, _ in found)}"
            if has_layers
            else found[0][1]
            if len(found) == 1
            else what,
            first=a,
            second=b,
            count=len(found),
        )
        for (what, a, b), found in groups.items()
    ]


def _by_layer(plan: Plan) -> dict[int, Layouts]:
    return {layer.layer: _specs(layer, stage) for stage in plan.stages for layer in stage.layers}


def _specs(layer: Layer, stage: Stage) -> Layouts:
    """Return a layout with the sizes of the axes that it uses; other sizes are another layout."""
    found: Layouts = {}
    for position, item in enumerate(layer.arguments):
        axes = [a for axes in item.layout.dims for a in axes]
        sizes = " ".join(f"{stage.mesh.names[a]}={stage.mesh.sizes[a]}" for a in axes)
        spec = f"{place_text(item, stage.mesh.names)} {sizes}".rstrip()
        found[item.name or f"input {position}"] = f"{type_text(item.dtype, item.shape)} {spec}"
    return found


def _dense(first: Stage | None, second: Stage | None) -> list[Difference]:
    one, two = _ways(first), _ways(second)
    return changed([(where, one.get(where), two.get(where)) for where in {**one, **two}])


def _ways(stage: Stage | None) -> dict[str, str]:
    """Return how the operators of each source line run."""
    found: dict[str, list[str]] = {}
    for item in stage.dense if stage else ():
        assert stage is not None
        names = stage.mesh.names
        way = way_text(item.operands, item.results, names)
        found.setdefault(item.where, []).append(f"{item.count}: {way}")
    return {where: "; ".join(ways) for where, ways in found.items()}


def _collectives(first: Plan, second: Plan) -> list[Difference]:
    one, two = _sums(first), _sums(second)
    return changed([(what, one.get(what), two.get(what)) for what in sorted({**one, **two})])


def _sums(plan: Plan) -> dict[str, str]:
    sums = collective_sums(plan.collectives, [stage.mesh for stage in plan.stages])
    several = len(plan.stages) > 1
    return {
        f"{kind} over {' '.join(axes)} of {size}" + (f", stage {stage}" if several else ""): (
            f"{count}, {bytes_text(num_bytes)}, {seconds_text(seconds)}"
        )
        for (stage, kind, axes, size), (count, num_bytes, seconds) in sums.items()
    }


def _others(first: Plan, second: Plan) -> list[Difference]:
    """Fields of the files that are shown nowhere else."""
    one: dict[str, Json] = json.loads(first.to_json())
    two: dict[str, Json] = json.loads(second.to_json())
    names = sorted(n for n in (one | two).keys() - _SHOWN if one.get(n) != two.get(n))
    if one["collectives"] != two["collectives"] and not _collectives(first, second):
        names.append("source lines of collectives")
    has_layouts = bool(_layouts(first, second))
    for k, (a, b) in enumerate(zip(one["stages"], two["stages"], strict=False)):
        if a["dense"] != b["dense"]:
            names.append(f"stages[{k}].dense")
        if a["layers"] != b["layers"] and not has_layouts:
            names.append(f"stages[{k}].layers")
    return [Difference(what=name, first="", second="differs") for name in names]
