"""The JSON form of a plan: versioned, sorted, one operator a line, equal bytes for equal plans.

Layouts are written as `graph.layout` prints them, decisions as `json_decision` does.
"""

from __future__ import annotations

from typing import cast

from meshwise.errors import PlanError
from meshwise.graph.layout import layout_text
from meshwise.plan import json_read as read
from meshwise.plan.collectives import Collective
from meshwise.plan.consistent import check_consistent
from meshwise.plan.contents import Argument, DenseOperator
from meshwise.plan.flop import Replicated
from meshwise.plan.json_decision import decision_json, read_decision
from meshwise.plan.json_mesh import mesh_json, read_layout, read_mesh
from meshwise.plan.json_read import Json, Reader
from meshwise.plan.json_write import fields, json_text
from meshwise.plan.padding import PaddedDim, Padding
from meshwise.plan.plan import Plan, Stage
from meshwise.plan.rivals import MemoryPrice, Rival, Way

FORMAT = "meshwise-plan"
VERSION = 3


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
        "collectives": [fields(item) for item in plan.collectives],
        "stages": [_stage_json(stage) for stage in plan.stages],
        "num_microbatches": plan.num_microbatches,
        "schedule": plan.schedule,
        "method": plan.method,
        "objective": plan.objective,
        "gap": None if plan.gap is None else float(plan.gap),
        "space": plan.space,
        "status": plan.status,
        "fingerprint": plan.fingerprint,
        "replicated": fields(plan.replicated),
        "parameters": [list(parameter) for parameter in plan.parameters],
        "rivals": [_rival_json(rival) for rival in plan.rivals],
        "memory_price": None if plan.memory_price is None else fields(plan.memory_price),
        "warnings": list(plan.warnings),
        "padding": fields(plan.padding) | {"dims": [fields(dim) for dim in plan.padding.dims]},
    }
    return json_text(data)


def _stage_json(stage: Stage) -> Json:
    return {
        "mesh": mesh_json(stage.mesh),
        "decision": decision_json(stage.decision),
        "arguments": [fields(argument) for argument in stage.arguments],
        "dense": [_dense_json(operator) for operator in stage.dense],
        "peak_bytes": stage.peak_bytes,
        "memory_bytes": stage.memory_bytes,
        "device_flop": float(stage.device_flop),
    }


def _dense_json(operator: DenseOperator) -> Json:
    return fields(operator) | {
        "operands": [layout_text(layout) for layout in operator.operands],
        "results": [layout_text(layout) for layout in operator.results],
    }


def _rival_json(rival: Rival) -> Json:
    chosen, other = _way_json(rival.chosen), rival.rival
    return fields(rival) | {"chosen": chosen, "rival": None if other is None else _way_json(other)}


def _way_json(way: Way) -> Json:
    return {
        "operands": [layout_text(layout) for layout in way.operands],
        "results": [layout_text(layout) for layout in way.results],
    }


# -- reading --------------------------------------------------------------------------------------


def plan_from_json(text: str) -> Plan:
    """The plan that a text describes.

    Raises:
        PlanError: naming the field that is missing, unknown or wrong.
    """
    record = read.document(text, FORMAT, VERSION, {2: _of_version_2})
    # Both follow from the stages; they are written for readers only.
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


def _of_version_2(data: dict[str, Json]) -> dict[str, Json]:
    """The fields of version 2, which did not say how much memory was asked for: all of a device."""
    stages = data.get("stages")
    if not isinstance(stages, list):
        return data  # the error is that of the reader
    return data | {"stages": [_stage_of_version_2(s) for s in cast(list[Json], stages)]}


def _stage_of_version_2(stage: Json) -> Json:
    match stage:
        case {"mesh": {"device": {"memory_bytes": memory_bytes}}}:
            return stage | {"memory_bytes": memory_bytes}
        case _:
            return stage


def _by_kind(value: Json, where: str) -> tuple[tuple[str, float], ...]:
    return read.list_of(read.pair_of(read.text, read.positive))(value, where)


def _way(value: Json, where: str) -> Way:
    layouts = read.list_of(read_layout)
    return read.record(value, where, Way, {"operands": layouts, "results": layouts})


def _rival(value: Json, where: str) -> Rival:
    known: dict[str, Reader] = {
        "what": read.text,
        "count": read.count,
        "chosen": _way,
        "rival": read.or_none(_way),
        "step_time_s": read.positive_or_none,
        "status": read.text,
    }
    return read.record(value, where, Rival, known)


def _memory_price(value: Json, where: str) -> MemoryPrice:
    known: dict[str, Reader] = {
        "more_bytes": read.count,
        "step_time_s": read.positive,
        "peak_bytes": read.size,
        "status": read.text,
    }
    return read.record(value, where, MemoryPrice, known)


def _argument(value: Json, where: str) -> Argument:
    known: dict[str, Reader] = {
        "name": read.text,
        "shape": read.list_of(read.size),
        "dtype": read.text,
        "itemsize": read.count,
        "communication": _by_kind,
    }
    return read.record(value, where, Argument, known)


def _dense(value: Json, where: str) -> DenseOperator:
    known: dict[str, Reader] = {
        "where": read.text,
        "operands": read.list_of(read_layout),
        "results": read.list_of(read_layout),
        "count": read.count,
        "device_flop": read.number,
        "compute_s": read.positive,
        "memory_s": read.positive,
        "communication": _by_kind,
    }
    return read.record(value, where, DenseOperator, known)


def _stage(value: Json, where: str) -> Stage:
    known: dict[str, Reader] = {
        "mesh": read_mesh,
        "decision": read_decision,
        "arguments": read.list_of(_argument),
        "dense": read.list_of(_dense),
        "peak_bytes": read.size,
        "memory_bytes": read.size,
        "device_flop": read.number,
    }
    return read.record(value, where, Stage, known)


def _collective(value: Json, where: str) -> Collective:
    known: dict[str, Reader] = {
        "kind": read.text,
        "axes": read.list_of(read.text),
        "group_size": read.count,
        "num_bytes": read.size,
        "count": read.count,
        "stage": read.size,
        "where": read.text,
    }
    return read.record(value, where, Collective, known)


def _replicated(value: Json, where: str) -> Replicated:
    known: dict[str, Reader] = {
        "flop_share": read.number,
        "bytes_share": read.number,
        "largest": read.list_of(read.pair_of(read.text, read.size)),
    }
    return read.record(value, where, Replicated, known)


def _padding(value: Json, where: str) -> Padding:
    dim: dict[str, Reader] = {
        "number": read.size,
        "size": read.count,
        "padded_size": read.count,
        "where": read.list_of(read.text),
    }
    dims = read.list_of(lambda item, place: read.record(item, place, PaddedDim, dim))
    known: dict[str, Reader] = {"dims": dims, "unpadded_step_time_s": read.positive_or_none}
    return read.record(value, where, Padding, known)
