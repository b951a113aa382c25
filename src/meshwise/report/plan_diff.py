"""What differs between two plans of one mesh."""

from __future__ import annotations

import itertools
import json
from typing import Any

from meshwise.plan.collectives import collective_s
from meshwise.plan.columns import layout_spec
from meshwise.plan.contents import pattern
from meshwise.plan.explain import mesh_text
from meshwise.plan.plan import Plan, Stage
from meshwise.report.difference import Difference, Section, changed, sections
from meshwise.units import bytes_text, seconds_text

# Fields of the file that a section shows; all others are only named.
_SHOWN = {
    "step_time_s", "peak_bytes", "device_flop", "collectives", "num_microbatches", "schedule",
    "method", "objective", "gap", "space", "status", "fingerprint", "stages",
}  # fmt: skip
_SHOWN_OF_STAGE = {"arguments", "dense", "peak_bytes", "device_flop"}


def plan_differences(first: Plan, second: Plan) -> tuple[Section, ...]:
    """Sections of what differs; none if the plans are equal."""
    stages = _paired_stages(first, second)
    if first == second:
        return ()
    found = sections(
        ("Decided by", _deciders(first, second)),
        ("A step", _totals(first, second)),
        ("Layouts of arguments", [row for a, b in stages for row in _arguments(a, b)]),
        ("Dense products and convolutions", [row for a, b in stages for row in _dense(a, b)]),
        ("Collectives in a step (count, bytes, seconds)", _collectives(first, second)),
        ("Also different, see `meshwise explain`", _others(first, second)),
    )
    return found or sections(
        ("Different", [Difference(what="numbers", first="", second="differs")])
    )


def _deciders(first: Plan, second: Plan) -> list[Difference]:
    return changed(
        [
            ("method", first.method, second.method),
            ("objective", first.objective, second.objective),
            ("mesh", _meshes(first), _meshes(second)),
            ("micro-batches", first.num_microbatches, second.num_microbatches),
            ("schedule", first.schedule, second.schedule),
            ("status", first.status, second.status),
            ("space", first.space, second.space),
            ("step (fingerprint)", first.fingerprint, second.fingerprint),
        ]
    )


def _meshes(plan: Plan) -> str:
    return "; ".join(mesh_text(stage.mesh) for stage in plan.stages)


def _totals(first: Plan, second: Plan) -> list[Difference]:
    return [
        *changed([("step time", first.step_time_s, second.step_time_s)], "s"),
        *changed([("peak memory", first.peak_bytes, second.peak_bytes)], "bytes"),
        *changed([("dense work", first.device_flop, second.device_flop)], "FLOP"),
        *changed([("gap", first.gap, second.gap)], "share"),
    ]


def _paired_stages(first: Plan, second: Plan) -> list[tuple[Stage | None, Stage | None]]:
    return list(itertools.zip_longest(first.stages, second.stages))


def _arguments(first: Stage | None, second: Stage | None) -> list[Difference]:
    """Layouts by argument; those that differ only in a number of their name share a row."""
    one, two = _layouts(first), _layouts(second)
    counts: dict[tuple[str, str | None, str | None], list[str]] = {}
    for name in [*one, *(name for name in two if name not in one)]:
        key = (pattern(name), one.get(name), two.get(name))
        counts.setdefault(key, []).append(name)
    return [
        Difference(what=names[0] if len(names) == 1 else what, first=a, second=b, count=len(names))
        for (what, a, b), names in counts.items()
        if a != b
    ]


def _layouts(stage: Stage | None) -> dict[str, str]:
    """`float32[8,4] P(x, -)` by name; where the mesh has other sizes, a layout is another."""
    if stage is None:
        return {}
    found: dict[str, str] = {}
    for position, (tensor, layout) in enumerate(
        zip(stage.arguments, stage.decision.inputs, strict=True)
    ):
        shape = f"{tensor.dtype}[{','.join(map(str, tensor.shape))}]"
        sizes = [a for axes in layout.dims for a in axes]
        split = " ".join(f"{stage.mesh.names[a]}={stage.mesh.sizes[a]}" for a in sizes)
        spec = f"{shape} {layout_spec(layout, stage.mesh.names)} {split}".rstrip()
        found[tensor.name or f"input {position}"] = spec
    return found


def _dense(first: Stage | None, second: Stage | None) -> list[Difference]:
    one, two = _ways(first), _ways(second)
    return changed([(where, one.get(where), two.get(where)) for where in {**one, **two}])


def _ways(stage: Stage | None) -> dict[str, str]:
    """How the operators of each source line run."""
    found: dict[str, list[str]] = {}
    for item in stage.dense if stage else ():
        assert stage is not None
        names = stage.mesh.names
        operands = " ".join(layout_spec(layout, names) for layout in item.operands)
        results = " ".join(layout_spec(layout, names) for layout in item.results)
        found.setdefault(item.where, []).append(f"{item.count}: {operands} -> {results}")
    return {where: "; ".join(ways) for where, ways in found.items()}


def _collectives(first: Plan, second: Plan) -> list[Difference]:
    one, two = _sums(first), _sums(second)
    return changed([(what, one.get(what), two.get(what)) for what in sorted({**one, **two})])


def _sums(plan: Plan) -> dict[str, str]:
    sums: dict[str, tuple[int, int, float]] = {}
    for item in plan.collectives:
        stage = f", stage {item.stage}" if len(plan.stages) > 1 else ""
        key = f"{item.kind} over {' '.join(item.axes)} of {item.group_size}{stage}"
        count, num_bytes, seconds = sums.get(key, (0, 0, 0.0))
        each_s = collective_s(item, plan.stages[item.stage].mesh)
        sums[key] = (
            count + item.count,
            num_bytes + item.count * item.num_bytes,
            seconds + item.count * each_s,
        )
    return {
        key: f"{count}, {bytes_text(num_bytes)}, {seconds_text(seconds)}"
        for key, (count, num_bytes, seconds) in sums.items()
    }


def _others(first: Plan, second: Plan) -> list[Difference]:
    """Fields of the files that are shown nowhere else."""
    one: dict[str, Any] = json.loads(first.to_json())
    two: dict[str, Any] = json.loads(second.to_json())
    names = [name for name in one if name not in _SHOWN and one[name] != two[name]]
    if one["collectives"] != two["collectives"] and not _collectives(first, second):
        names.append("source lines of collectives")
    for k, (a, b) in enumerate(zip(one["stages"], two["stages"], strict=False)):
        names += [f"stages[{k}].{f}" for f in a if f not in _SHOWN_OF_STAGE and a[f] != b[f]]
        names += [
            f"stages[{k}].{f}"
            for f in ("arguments", "dense")
            if a[f] != b[f] and f"stages[{k}].decision" not in names
        ]
    return [Difference(what=name, first="", second="differs") for name in names]
