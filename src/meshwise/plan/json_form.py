"""The JSON form of a plan: versioned, sorted, one operator a line, equal bytes for equal plans.

Layouts are written as `graph.layout` prints them.  A use is `layout`, with ` via LAYOUT` where a
shared copy is made first and ` group N` for groups other than 0.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from meshwise.cluster.mesh import DeviceSpec, LogicalMesh, MeshAxis
from meshwise.errors import PlanError
from meshwise.graph.layout import Layout, layout_text, parse_layout
from meshwise.plan.collectives import Collective
from meshwise.plan.consistent import check_consistent
from meshwise.plan.contents import Argument, DenseOperator
from meshwise.plan.decision import GraphDecision, OperatorDecision, Use
from meshwise.plan.flop import Replicated
from meshwise.plan.padding import PaddedDim, Padding
from meshwise.plan.plan import Plan, Stage

FORMAT = "meshwise-plan"
VERSION = 2
LINE_LENGTH = 100

Value = TypeVar("Value")
Other = TypeVar("Other")
# What the `json` module makes of a text.
Json = Any

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
    plan = _record(
        record,
        "",
        Plan,
        {
            "step_time_s": _positive,
            "collectives": _list_of(_collective),
            "stages": _list_of(_stage),
            "num_microbatches": _count,
            "schedule": _text,
            "method": _text,
            "objective": _text,
            "gap": _positive_or_none,
            "space": _text,
            "status": _text,
            "fingerprint": _text,
            "replicated": _replicated,
            "parameters": _list_of(_pair_of(_size, _text)),
            "warnings": _list_of(_text),
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


Reader = Callable[[Json, str], Any]


def _wrong(where: str, wanted: str, value: Json) -> PlanError:
    got = repr(value)
    return PlanError(f"field {where!r}: expected {wanted}, got {got[:60]}")


def _record(data: Json, where: str, kind: Callable[..., Value], fields: Mapping[str, Reader]):
    """A record from a JSON object that has exactly the given fields."""
    if not isinstance(data, dict):
        raise _wrong(where, "an object", data)
    data = cast(dict[str, Json], data)
    prefix = f"{where}." if where else ""
    for key in data:
        if key not in fields:
            raise PlanError(f"field {prefix + key!r} is unknown")
    for key in fields:
        if key not in data:
            raise PlanError(f"field {prefix + key!r} is missing")
    return kind(**{key: read(data[key], prefix + key) for key, read in fields.items()})


def _list_of(read: Callable[[Json, str], Value]) -> Callable[[Json, str], tuple[Value, ...]]:
    def read_all(value: Json, where: str) -> tuple[Value, ...]:
        if not isinstance(value, list):
            raise _wrong(where, "a list", value)
        items = cast(list[Json], value)
        return tuple(read(item, f"{where}[{i}]") for i, item in enumerate(items))

    return read_all


def _text(value: Json, where: str) -> str:
    if not isinstance(value, str):
        raise _wrong(where, "a text", value)
    return value


def _int(value: Json, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _wrong(where, "a whole number", value)
    return value


def _count(value: Json, where: str) -> int:
    if _int(value, where) < 1:
        raise _wrong(where, "a whole number above zero", value)
    return value


def _size(value: Json, where: str) -> int:
    if _int(value, where) < 0:
        raise _wrong(where, "a whole number, zero or more", value)
    return value


def _number(value: Json, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _wrong(where, "a finite number", value)
    return float(value)


def _positive(value: Json, where: str) -> float:
    if _number(value, where) < 0:
        raise _wrong(where, "a number, zero or more", value)
    return float(value)


def _positive_or_none(value: Json, where: str) -> float | None:
    return None if value is None else _positive(value, where)


def _layout(value: Json, where: str) -> Layout:
    try:
        return parse_layout(_text(value, where))
    except ValueError as error:
        raise _wrong(where, "a layout, as 'S0 R' or 'R sum:P1'", value) from error


def _use(value: Json, where: str) -> Use:
    match = _USE.fullmatch(_text(value, where))
    assert match is not None  # the first group matches anything
    layout = _layout(match["layout"], where)
    via = layout if match["via"] is None else _layout(match["via"], where)
    return Use(group=int(match["group"] or 0), via=via, layout=layout)


def _operator(value: Json, where: str) -> OperatorDecision:
    fields: dict[str, Reader] = {
        "strategy": _list_of(_int),
        "uses": _list_of(_use),
        "results": _list_of(_layout),
    }
    if isinstance(value, dict) and "bodies" in value:
        fields["bodies"] = _list_of(_decision)
    return _record(value, where, OperatorDecision, fields)


def _decision(value: Json, where: str) -> GraphDecision:
    fields: dict[str, Reader] = {
        "inputs": _list_of(_layout),
        "operators": _list_of(_operator),
        "outputs": _list_of(_use),
    }
    return _record(value, where, GraphDecision, fields)


def _pair_of(
    first: Callable[[Json, str], Value], second: Callable[[Json, str], Other]
) -> Callable[[Json, str], tuple[Value, Other]]:
    def read_pair(value: Json, where: str) -> tuple[Value, Other]:
        if not isinstance(value, list) or len(cast(list[Json], value)) != 2:
            raise _wrong(where, "a list of two", value)
        one, two = cast(list[Json], value)
        return first(one, f"{where}[0]"), second(two, f"{where}[1]")

    return read_pair


def _device(value: Json, where: str) -> DeviceSpec:
    fields: dict[str, Reader] = {
        "name": _text,
        "memory_bytes": _size,
        "memory_bytes_per_s": _positive,
        "flop_per_s": _list_of(_pair_of(_text, _positive)),
        "source": _text,
    }
    return _record(value, where, DeviceSpec, fields)


def _axis(value: Json, where: str) -> MeshAxis:
    fields: dict[str, Reader] = {
        "name": _text,
        "size": _count,
        "latency_s": _positive,
        "link_bytes_per_s": _positive,
    }
    return _record(value, where, MeshAxis, fields)


def _mesh(value: Json, where: str) -> LogicalMesh:
    fields: dict[str, Reader] = {"axes": _list_of(_axis), "device": _device}
    return _record(value, where, LogicalMesh, fields)


def _argument(value: Json, where: str) -> Argument:
    fields: dict[str, Reader] = {
        "name": _text,
        "shape": _list_of(_size),
        "dtype": _text,
        "itemsize": _count,
    }
    return _record(value, where, Argument, fields)


def _dense(value: Json, where: str) -> DenseOperator:
    fields: dict[str, Reader] = {
        "where": _text,
        "operands": _list_of(_layout),
        "results": _list_of(_layout),
        "count": _count,
        "device_flop": _number,
    }
    return _record(value, where, DenseOperator, fields)


def _stage(value: Json, where: str) -> Stage:
    fields: dict[str, Reader] = {
        "mesh": _mesh,
        "decision": _decision,
        "arguments": _list_of(_argument),
        "dense": _list_of(_dense),
        "peak_bytes": _size,
        "device_flop": _number,
    }
    return _record(value, where, Stage, fields)


def _collective(value: Json, where: str) -> Collective:
    fields: dict[str, Reader] = {
        "kind": _text,
        "axes": _list_of(_text),
        "group_size": _count,
        "num_bytes": _size,
        "count": _count,
        "stage": _size,
        "where": _text,
    }
    return _record(value, where, Collective, fields)


def _replicated(value: Json, where: str) -> Replicated:
    fields: dict[str, Reader] = {
        "flop_share": _number,
        "bytes_share": _number,
        "largest": _list_of(_pair_of(_text, _size)),
    }
    return _record(value, where, Replicated, fields)


def _padding(value: Json, where: str) -> Padding:
    dim: dict[str, Reader] = {
        "number": _size,
        "size": _count,
        "padded_size": _count,
        "where": _list_of(_text),
    }
    dims = _list_of(lambda item, place: _record(item, place, PaddedDim, dim))
    fields: dict[str, Reader] = {"dims": dims, "unpadded_step_time_s": _positive_or_none}
    return _record(value, where, Padding, fields)
