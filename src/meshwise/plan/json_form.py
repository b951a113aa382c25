"""The JSON form of a plan: versioned, sorted, one operator a line, equal bytes for equal plans.

Layouts are written as `graph.layout` prints them.  A use is `layout`, with ` via LAYOUT` where a
shared copy is made first and ` group N` for groups other than 0.
"""

from __future__ import annotations

import json
import re
from typing import Any, cast

from meshwise.cluster.mesh import DeviceSpec, LogicalMesh, MeshAxis
from meshwise.errors import PlanError
from meshwise.graph.layout import Layout, layout_text, parse_layout
from meshwise.plan import json_read as read
from meshwise.plan.collectives import Collective
from meshwise.plan.consistent import check_consistent
from meshwise.plan.contents import Argument, DenseOperator
from meshwise.plan.decision import GraphDecision, OperatorDecision, Use
from meshwise.plan.flop import Replicated
from meshwise.plan.json_read import Json, Reader
from meshwise.plan.padding import PaddedDim, Padding
from meshwise.plan.plan import Plan, Stage
from meshwise.plan.rivals import MemoryPrice, Rival, Way

FORMAT = "meshwise-plan"
VERSION = 2
LINE_LENGTH = 100

_USE = re.compile(r"(?P<layout>.*?)(?: via (?P<via>.*?))?(?: group (?P<group>-?\d+))?")


# -- writing --------------------------------------------------------------------------------------


def plan_to_json(plan: Plan) -> str:
    """JSON text of a plan.

    Raises:
        PlanError: a number is infinite or not a number.
    """
    data: Json = {
        "format": FORMAT,
        "version": VERSION,
        "step_time_s": float(plan.step_time_s),
        "peak_bytes": plan.peak_bytes,
        "device_flop": float(plan.device_flop),
        "collectives": [_fields(item) for item in plan.collectives],
        "stages": [_stage_json(stage) for stage in plan.stages],
        "num_microbatches": plan.num_microbatches,
        "schedule": plan.schedule,
        "method": plan.method,
        "objective": plan.objective,
        "gap": None if plan.gap is None else float(plan.gap),
        "space": plan.space,
        "status": plan.status,
        "fingerprint": plan.fingerprint,
        "replicated": _fields(plan.replicated),
        "parameters": [list(parameter) for parameter in plan.parameters],
        "rivals": [_rival_json(rival) for rival in plan.rivals],
        "memory_price": None if plan.memory_price is None else _fields(plan.memory_price),
        "warnings": list(plan.warnings),
        "padding": _fields(plan.padding) | {"dims": [_fields(dim) for dim in plan.padding.dims]},
    }
    try:
        return "".join(_lines(data, "")) + "\n"
    except ValueError as error:
        raise PlanError(f"a plan with infinite numbers cannot be written: {error}") from error


def _fields(record: Any) -> Json:
    """Fields of a record; 1 and 1.0 are equal, so both are written as 1.0 where a float is."""
    return {
        name: float(value) if field.type == "float" and isinstance(value, int) else value
        for name, field in record.__dataclass_fields__.items()
        for value in (getattr(record, name),)
    }


def _stage_json(stage: Stage) -> Json:
    rates = [[dtype, float(rate)] for dtype, rate in stage.mesh.device.flop_per_s]
    device = _fields(stage.mesh.device) | {"flop_per_s": rates}
    times = [
        [dtype, [[float(flop), float(seconds)] for flop, seconds in points]]
        for dtype, points in stage.mesh.device.dense_times
    ]
    # Only where it was measured, as by `meshwise calibrate`.
    device = {key: value for key, value in device.items() if key != "dense_times"}
    if times:
        device["dense_times"] = times
    return {
        "mesh": {"axes": [_fields(axis) for axis in stage.mesh.axes], "device": device},
        "decision": _decision_json(stage.decision),
        "arguments": [_fields(argument) for argument in stage.arguments],
        "dense": [_dense_json(operator) for operator in stage.dense],
        "peak_bytes": stage.peak_bytes,
        "device_flop": float(stage.device_flop),
    }


def _dense_json(operator: DenseOperator) -> Json:
    return _fields(operator) | {
        "operands": [layout_text(layout) for layout in operator.operands],
        "results": [layout_text(layout) for layout in operator.results],
    }


def _rival_json(rival: Rival) -> Json:
    chosen, other = _way_json(rival.chosen), rival.rival
    return _fields(rival) | {"chosen": chosen, "rival": None if other is None else _way_json(other)}


def _way_json(way: Way) -> Json:
    return {
        "operands": [layout_text(layout) for layout in way.operands],
        "results": [layout_text(layout) for layout in way.results],
    }


def _decision_json(decision: GraphDecision) -> Json:
    return {
        "inputs": [layout_text(layout) for layout in decision.inputs],
        "operators": [_operator_json(operator) for operator in decision.operators],
        "outputs": [_use_text(use) for use in decision.outputs],
    }


def _operator_json(operator: OperatorDecision) -> Json:
    data: Json = {
        "strategy": list(operator.strategy),
        "uses": [_use_text(use) for use in operator.uses],
        "results": [layout_text(layout) for layout in operator.results],
    }
    if operator.bodies:
        data["bodies"] = [_decision_json(body) for body in operator.bodies]
    return data


def _use_text(use: Use) -> str:
    via = "" if use.via == use.layout else f" via {layout_text(use.via)}"
    group = f" group {use.group}" if use.group else ""
    return f"{layout_text(use.layout)}{via}{group}"


def _lines(value: Json, indent: str) -> list[str]:
    """Pieces of text; what fits into a line stays in one."""
    flat = json.dumps(value, sort_keys=True, allow_nan=False)
    if len(indent) + len(flat) <= LINE_LENGTH or not isinstance(value, dict | list) or not value:
        return [flat]
    deeper = indent + " "
    if isinstance(value, dict):
        table = cast(dict[str, Json], value)
        items = [(f"{json.dumps(key)}: ", table[key]) for key in sorted(table)]
    else:
        items = [("", item) for item in cast(list[Json], value)]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    pieces = [opening]
    for position, (key, item) in enumerate(items):
        pieces.append(f"{',' if position else ''}\n{deeper}{key}")
        pieces.extend(_lines(item, deeper))
    return [*pieces, f"\n{indent}{closing}"]


# -- reading --------------------------------------------------------------------------------------


def plan_from_json(text: str) -> Plan:
    """The plan that a text describes.

    Raises:
        PlanError: naming the field that is missing, unknown or wrong.
    """
    given: Any = text
    if not isinstance(given, str):
        raise PlanError(f"a plan is read from a text, got {given!r:.60} ({type(given).__name__})")
    try:
        data: Json = json.loads(text)
    except json.JSONDecodeError as error:
        raise PlanError(f"a plan must be JSON: {error}") from error
    if not isinstance(data, dict) or cast(Json, data).get("format") != FORMAT:
        raise PlanError(f"not a plan: the field 'format' must be {FORMAT!r}")
    data = cast(Json, data)
    if data.get("version") != VERSION:
        raise PlanError(
            f"field 'version': this program reads version {VERSION}, got {data.get('version')!r}"
        )
    # Both follow from the stages; they are written for readers only.
    record = {key: value for key, value in data.items() if key not in ("format", "version")}
    told = {key: record.pop(key, None) for key in ("peak_bytes", "device_flop")}
    plan = read.record(
        record,
        "",
        Plan,
        {
            "step_time_s": read.positive,
            "collectives": read.list_of(_collective),
            "stages": read.list_of(_stage),
            "num_microbatches": read.count,
            "schedule": read.text,
            "method": read.text,
            "objective": read.text,
            "gap": read.positive_or_none,
            "space": read.text,
            "status": read.text,
            "fingerprint": read.text,
            "replicated": _replicated,
            "parameters": read.list_of(read.pair_of(read.size, read.text)),
            "rivals": read.list_of(_rival),
            "memory_price": read.or_none(_memory_price),
            "warnings": read.list_of(read.text),
            "padding": _padding,
        },
    )
    check_consistent(plan)
    for key, value in told.items():
        if value != getattr(plan, key):
            raise PlanError(
                f"field {key!r}: {value!r} is not that of the worst stage, {getattr(plan, key)!r}"
            )
    return plan


def _layout(value: Json, where: str) -> Layout:
    try:
        return parse_layout(read.text(value, where))
    except ValueError as error:
        raise read.wrong(where, "a layout, as 'S0 R' or 'R sum:P1'", value) from error


def _use(value: Json, where: str) -> Use:
    match = _USE.fullmatch(read.text(value, where))
    assert match is not None  # the first group matches anything
    layout = _layout(match["layout"], where)
    via = layout if match["via"] is None else _layout(match["via"], where)
    return Use(group=int(match["group"] or 0), via=via, layout=layout)


def _operator(value: Json, where: str) -> OperatorDecision:
    fields: dict[str, Reader] = {
        "strategy": read.list_of(read.whole),
        "uses": read.list_of(_use),
        "results": read.list_of(_layout),
    }
    if isinstance(value, dict) and "bodies" in value:
        fields["bodies"] = read.list_of(_decision)
    return read.record(value, where, OperatorDecision, fields)


def _decision(value: Json, where: str) -> GraphDecision:
    fields: dict[str, Reader] = {
        "inputs": read.list_of(_layout),
        "operators": read.list_of(_operator),
        "outputs": read.list_of(_use),
    }
    return read.record(value, where, GraphDecision, fields)


def _device(value: Json, where: str) -> DeviceSpec:
    fields: dict[str, Reader] = {
        "name": read.text,
        "memory_bytes": read.size,
        "memory_bytes_per_s": read.positive,
        "flop_per_s": read.list_of(read.pair_of(read.text, read.positive)),
        "source": read.text,
    }
    if isinstance(value, dict) and "dense_times" in value:
        points = read.list_of(read.pair_of(read.positive, read.positive))
        fields["dense_times"] = read.list_of(read.pair_of(read.text, points))
    return read.record(value, where, DeviceSpec, fields)


def _axis(value: Json, where: str) -> MeshAxis:
    fields: dict[str, Reader] = {
        "name": read.text,
        "size": read.count,
        "latency_s": read.positive,
        "link_bytes_per_s": read.positive,
    }
    return read.record(value, where, MeshAxis, fields)


def _mesh(value: Json, where: str) -> LogicalMesh:
    fields: dict[str, Reader] = {"axes": read.list_of(_axis), "device": _device}
    return read.record(value, where, LogicalMesh, fields)


def _by_kind(value: Json, where: str) -> tuple[tuple[str, float], ...]:
    return read.list_of(read.pair_of(read.text, read.positive))(value, where)


def _way(value: Json, where: str) -> Way:
    layouts = read.list_of(_layout)
    return read.record(value, where, Way, {"operands": layouts, "results": layouts})


def _rival(value: Json, where: str) -> Rival:
    fields: dict[str, Reader] = {
        "what": read.text,
        "count": read.count,
        "chosen": _way,
        "rival": read.or_none(_way),
        "step_time_s": read.positive_or_none,
        "status": read.text,
    }
    return read.record(value, where, Rival, fields)


def _memory_price(value: Json, where: str) -> MemoryPrice:
    fields: dict[str, Reader] = {
        "more_bytes": read.count,
        "step_time_s": read.positive,
        "peak_bytes": read.size,
        "status": read.text,
    }
    return read.record(value, where, MemoryPrice, fields)


def _argument(value: Json, where: str) -> Argument:
    fields: dict[str, Reader] = {
        "name": read.text,
        "shape": read.list_of(read.size),
        "dtype": read.text,
        "itemsize": read.count,
        "communication": _by_kind,
    }
    return read.record(value, where, Argument, fields)


def _dense(value: Json, where: str) -> DenseOperator:
    fields: dict[str, Reader] = {
        "where": read.text,
        "operands": read.list_of(_layout),
        "results": read.list_of(_layout),
        "count": read.count,
        "device_flop": read.number,
        "compute_s": read.positive,
        "memory_s": read.positive,
        "communication": _by_kind,
    }
    return read.record(value, where, DenseOperator, fields)


def _stage(value: Json, where: str) -> Stage:
    fields: dict[str, Reader] = {
        "mesh": _mesh,
        "decision": _decision,
        "arguments": read.list_of(_argument),
        "dense": read.list_of(_dense),
        "peak_bytes": read.size,
        "device_flop": read.number,
    }
    return read.record(value, where, Stage, fields)


def _collective(value: Json, where: str) -> Collective:
    fields: dict[str, Reader] = {
        "kind": read.text,
        "axes": read.list_of(read.text),
        "group_size": read.count,
        "num_bytes": read.size,
        "count": read.count,
        "stage": read.size,
        "where": read.text,
    }
    return read.record(value, where, Collective, fields)


def _replicated(value: Json, where: str) -> Replicated:
    fields: dict[str, Reader] = {
        "flop_share": read.number,
        "bytes_share": read.number,
        "largest": read.list_of(read.pair_of(read.text, read.size)),
    }
    return read.record(value, where, Replicated, fields)


def _padding(value: Json, where: str) -> Padding:
    dim: dict[str, Reader] = {
        "number": read.size,
        "size": read.count,
        "padded_size": read.count,
        "where": read.list_of(read.text),
    }
    dims = read.list_of(lambda item, place: read.record(item, place, PaddedDim, dim))
    fields: dict[str, Reader] = {"dims": dims, "unpadded_step_time_s": read.positive_or_none}
    return read.record(value, where, Padding, fields)
