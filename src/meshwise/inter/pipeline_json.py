"""The JSON form of a pipeline: versioned, sorted, equal bytes for equal plans.

The cluster stands in it with all its numbers, as `cluster.read` documents them, so that a file is
simulated without the planner and without the catalog.  What a number of micro-batches would take
is null where nothing fits.

Decisions of layers are written once each, and layers name them by number.  Versions 1 and 2 are
read too: no stage of theirs splits its backward pass; 1 had no decisions, and said nothing of
gathering what neighbours send.
"""

from __future__ import annotations

import math
from typing import cast

from meshwise.cluster.read import cluster_fields
from meshwise.cluster.spec import Cluster
from meshwise.cluster.write import cluster_table
from meshwise.errors import ClusterError, PlanError
from meshwise.graph.layout import Layout, layout_text
from meshwise.inter.piece import REMATS
from meshwise.inter.pipeline_consistent import check_pipeline
from meshwise.inter.pipeline_plan import (
    LayerPlan,
    PipelinePlan,
    PipelineStage,
    WeightGradients,
)
from meshwise.plan import json_read as read
from meshwise.plan.json_decision import decision_json, read_decision
from meshwise.plan.json_mesh import mesh_json, read_layout, read_mesh
from meshwise.plan.json_read import Json, Reader
from meshwise.plan.json_write import fields, json_text

FORMAT = "meshwise-pipeline"
VERSION = 3


# -- writing --------------------------------------------------------------------------------------


def pipeline_to_json(plan: PipelinePlan) -> str:
    """JSON text of a plan.

    Raises:
        PlanError: a number is infinite or not a number.
    """
    data = fields(plan) | {
        "format": FORMAT,
        "version": VERSION,
        "cluster": cluster_table(plan.cluster),
        "stages": [_stage_json(stage) for stage in plan.stages],
        "tried": [[b, float(s) if math.isfinite(s) else None] for b, s in plan.tried],
        "tied": list(plan.tied),
        "delays": list(plan.delays),
        "cuts": [list(cut) for cut in plan.cuts],
        "decisions": [decision_json(decision) for decision in plan.decisions],
    }
    return json_text(data)


def _stage_json(stage: PipelineStage) -> Json:
    return fields(stage) | {
        "submesh": list(stage.submesh),
        "mesh": mesh_json(stage.mesh),
        "layers": [_layer_json(layer) for layer in stage.layers],
        "weights": None if stage.weights is None else fields(stage.weights),
    }


def _layer_json(layer: LayerPlan) -> Json:
    inputs = [[name, list(shape), layout_text(layout)] for name, shape, layout in layer.inputs]
    return fields(layer) | {"inputs": inputs}


# -- reading --------------------------------------------------------------------------------------


def pipeline_from_json(text: str) -> PipelinePlan:
    """The plan that a text describes.

    Raises:
        PlanError: naming the field that is missing, unknown or wrong.
    """
    known: dict[str, Reader] = {
        "model": read.text,
        "cluster": _cluster,
        "batch_size": read.count,
        "num_microbatches": read.count,
        "schedule": read.text,
        "hides_transfers": read.flag,
        "stages": read.list_of(_stage),
        "step_time_s": read.positive,
        "bound_s": read.positive,
        "space": read.text,
        "simulated_s": read.positive,
        "bubble_share": read.number,
        "exposed_s": read.positive,
        "tried": read.list_of(read.pair_of(read.count, _seconds)),
        "step_flop": read.positive,
        "tied": read.list_of(read.text),
        "delays": read.list_of(read.size),
        "cuts": read.list_of(read.pair_of(read.size, read.size)),
        "decisions": read.list_of(read_decision),
    }
    document = read.document(text, FORMAT, VERSION, {1: _of_version_1, 2: _of_version_2})
    plan = read.record(document, "", PipelinePlan, known)
    check_pipeline(plan)
    return plan


def _of_version_1(data: dict[str, Json]) -> dict[str, Json]:
    """The fields of version 1 with what it did not say."""
    stages = data.get("stages")
    if not isinstance(stages, list):
        return data
    nothing: dict[str, Json] = {"cuts": [], "decisions": []}
    upgraded = [_stage_of_version_1(s) for s in cast(list[Json], stages)]
    return _of_version_2(data | nothing | {"stages": upgraded})


def _of_version_2(data: dict[str, Json]) -> dict[str, Json]:
    """The fields of version 2 with what it did not say."""
    stages = data.get("stages")
    if not isinstance(stages, list):
        return data
    upgraded = [
        cast(dict[str, Json], s) | {"weights": None} if isinstance(s, dict) else s
        for s in cast(list[Json], stages)
    ]
    return data | {"stages": upgraded, "delays": []}


def _stage_of_version_1(stage: Json) -> Json:
    if not isinstance(stage, dict):
        return stage
    fields_of = cast(dict[str, Json], stage) | {"forward_gather_s": 0.0, "backward_gather_s": 0.0}
    layers = fields_of.get("layers")
    if isinstance(layers, list):
        fields_of["layers"] = [
            cast(dict[str, Json], x) | {"decision": None} if isinstance(x, dict) else x
            for x in cast(list[Json], layers)
        ]
    return fields_of


def _cluster(value: Json, where: str) -> Cluster:
    try:
        name, groups = cluster_fields(value, f"field {where!r}")
    except ClusterError as error:
        raise PlanError(str(error)) from error
    return Cluster(name=name, groups=groups)


def _seconds(value: Json, where: str) -> float:
    return math.inf if value is None else read.positive(value, where)


def _stage(value: Json, where: str) -> PipelineStage:
    known: dict[str, Reader] = {
        "first_layer": read.size,
        "last_layer": read.size,
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
        "layers": read.list_of(_layer),
        "weights": read.or_none(_weights),
    }
    return read.record(value, where, PipelineStage, known)


def _weights(value: Json, where: str) -> WeightGradients:
    known: dict[str, Reader] = {
        "seconds": read.positive,
        "held_bytes": read.size,
        "waiting": read.size,
    }
    return read.record(value, where, WeightGradients, known)


def _layer(value: Json, where: str) -> LayerPlan:
    known: dict[str, Reader] = {
        "layer": read.size,
        "equal_to": read.size,
        "inputs": read.list_of(_input),
        "decision": read.or_none(read.size),
    }
    return read.record(value, where, LayerPlan, known)


def _input(value: Json, where: str) -> tuple[str, tuple[int, ...], Layout]:
    if not isinstance(value, list) or len(cast(list[Json], value)) != 3:
        raise read.wrong(where, "a list of a name, a shape and a layout", value)
    name, shape, layout = cast(list[Json], value)
    return (
        read.text(name, f"{where}[0]"),
        read.list_of(read.size)(shape, f"{where}[1]"),
        read_layout(layout, f"{where}[2]"),
    )
