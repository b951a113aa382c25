"""The JSON form of a plan: versioned, sorted, one operator a line, equal bytes for equal plans.

Layouts are written as `graph.layout` prints them, decisions as `json_decision` does, once each;
layers name them by number.  The cluster stands in it with all its numbers, as
`cluster.description.cluster_file` documents them, so that a file is simulated without the planner
and without the catalog.  What a number of micro-batches would take is null where nothing fits.
"""

from __future__ import annotations

import math
from typing import Any

from meshwise.cluster.description.cluster_file import cluster_fields
from meshwise.cluster.spec import Cluster
from meshwise.errors import ClusterError, PlanError
from meshwise.graph.layout import layout_text
from meshwise.plan.counts.collectives import Collective
from meshwise.plan.counts.contents import Argument, DenseOperator
from meshwise.plan.counts.flop import Replicated
from meshwise.plan.files import json_read as read
from meshwise.plan.files.json_decision import decision_json, read_decision
from meshwise.plan.files.json_mesh import mesh_json, read_layout, read_mesh
from meshwise.plan.files.json_older import OLDER_PIPELINES, OLDER_PLANS, PIPELINE_FORMAT
from meshwise.plan.files.json_read import Json, Reader
from meshwise.plan.files.json_write import fields, json_text
from meshwise.plan.padding import PaddedDim, Padding
from meshwise.plan.record import PlanRecord
from meshwise.plan.rivals import MemoryPrice, Rival, Way
from meshwise.plan.stage import REMATS, Layer, Stage, WeightGradients

FORMAT = "meshwise-plan"
VERSION = 4
# They follow from the stages, and are written for readers only.
_SUMS = ("peak_bytes", "device_flop")


# -- writing --------------------------------------------------------------------------------------


def plan_to_json(plan: PlanRecord) -> str:
    """Return the JSON text of a plan.

    Raises:
        PlanError: a number is infinite or not a number.
    """
    data: Json = fields(plan) | {
        "format": FORMAT,
        "version": VERSION,
        "peak_bytes": plan.peak_bytes,
        "device_flop": float(plan.device_flop),
        "cluster": None if plan.cluster is None else plan.cluster.table(),
        "stages": [_stage_json(stage) for stage in plan.stages],
        "decisions": [decision_json(decision) for decision in plan.decisions],
        "collectives": [fields(item) for item in plan.collectives],
        "tried": [[b, float(s) if math.isfinite(s) else None] for b, s in plan.tried],
        "tied": list(plan.tied),
        "delays": list(plan.delays),
        "cuts": [list(cut) for cut in plan.cuts],
        "gap": None if plan.gap is None else float(plan.gap),
        "replicated": fields(plan.replicated),
        "parameters": [list(parameter) for parameter in plan.parameters],
        "rivals": [_rival_json(rival) for rival in plan.rivals],
        "memory_price": None if plan.memory_price is None else fields(plan.memory_price),
        "warnings": list(plan.warnings),
        "padding": fields(plan.padding) | {"dims": [fields(dim) for dim in plan.padding.dims]},
    }
    return json_text(data)


def _stage_json(stage: Stage) -> Json:
    return fields(stage) | {
        "submesh": list(stage.submesh),
        "mesh": mesh_json(stage.mesh),
        "layers": [_layer_json(layer) for layer in stage.layers],
        "dense": [_dense_json(operator) for operator in stage.dense],
        "weights": None if stage.weights is None else fields(stage.weights),
    }


def _layer_json(layer: Layer) -> Json:
    found = [fields(item) | {"layout": layout_text(item.layout)} for item in layer.arguments]
    return fields(layer) | {"arguments": found}


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


def fields_from_json(text: str) -> dict[str, Any]:
    """Return the fields of the plan that a text describes, also one of an earlier version.

    Raises:
        PlanError: naming the field that is missing, unknown or wrong.
    """
    document = read.document(
        text, VERSION, {FORMAT: OLDER_PLANS, PIPELINE_FORMAT: OLDER_PIPELINES}, FORMAT
    )
    told = {key: document.pop(key) for key in _SUMS if key in document}
    found = read.fields(
        document,
        {
            "step_time_s": read.positive,
            "stages": read.list_of(_stage),
            "decisions": read.list_of(read_decision),
            "collectives": read.list_of(_collective),
            "cluster": read.or_none(_cluster),
            "model": read.text,
            "batch_size": read.size,
            "num_microbatches": read.count,
            "schedule": read.text,
            "hides_transfers": read.flag,
            "delays": read.list_of(read.size),
            "simulated_s": read.positive,
            "bubble_share": read.number,
            "exposed_s": read.positive,
            "tried": read.list_of(read.pair_of(read.count, _seconds)),
            "step_flop": read.positive,
            "tied": read.list_of(read.text),
            "cuts": read.list_of(read.pair_of(read.size, read.size)),
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
    if not found["stages"]:
        raise PlanError("field 'stages': a plan needs at least one stage")
    plan = PlanRecord(**found)
    for key, value in told.items():
        if value != getattr(plan, key):
            raise PlanError(
                f"field {key!r}: {value!r} is not that of the worst stage, {getattr(plan, key)!r}"
            )
    return found


def _cluster(value: Json, where: str) -> Cluster:
    try:
        name, groups = cluster_fields(value, f"field {where!r}")
    except ClusterError as error:
        raise PlanError(str(error)) from error
    return Cluster(name=name, groups=groups)


def _seconds(value: Json, where: str) -> float:
    return math.inf if value is None else read.positive(value, where)


def _stage(value: Json, where: str) -> Stage:
    known: dict[str, Reader] = {
        "layers": read.list_of(_layer),
        "submesh": read.pair_of(read.count, read.count),
        "first_device": read.size,
        "mesh": read_mesh,
        "remat": read.one_of(REMATS),
        "forward_s": read.positive,
        "backward_s": read.positive,
        "forward_gather_s": read.positive,
        "backward_gather_s": read.positive,
        "once_s": read.positive,
        "resident_bytes": read.size,
        "microbatch_bytes": read.size,
        "temporary_bytes": read.size,
        "in_flight": read.size,
        "memory_bytes": read.size,
        "send_bytes": read.size,
        "device_flop": read.positive,
        "dense": read.list_of(_dense),
        "weights": read.or_none(_weights),
    }
    stage = read.record(value, where, Stage, known)
    if not stage.layers:
        raise PlanError(f"field '{where}.layers': a stage needs at least one layer")
    return stage


def _weights(value: Json, where: str) -> WeightGradients:
    known: dict[str, Reader] = {
        "seconds": read.positive,
        "held_bytes": read.size,
        "waiting": read.size,
    }
    return read.record(value, where, WeightGradients, known)


def _layer(value: Json, where: str) -> Layer:
    known: dict[str, Reader] = {
        "layer": read.size,
        "equal_to": read.size,
        "arguments": read.list_of(_argument),
        "decision": read.or_none(read.size),
    }
    return read.record(value, where, Layer, known)


def _by_kind(value: Json, where: str) -> tuple[tuple[str, float], ...]:
    return read.list_of(read.pair_of(read.text, read.positive))(value, where)


def _argument(value: Json, where: str) -> Argument:
    known: dict[str, Reader] = {
        "name": read.text,
        "shape": read.list_of(read.size),
        "dtype": read.text,
        # 0 in files that did not say it.
        "itemsize": read.size,
        "layout": read_layout,
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
