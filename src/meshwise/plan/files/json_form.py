"""The JSON form of a plan: versioned, sorted, one operator a line, equal bytes for equal plans.

Layouts are written as `graph.layout` prints them, decisions as `json_decision` does, once each;
layers name them by number.  The cluster stands in it with all its numbers, as
`cluster.description.cluster_file` documents them, so that a file is simulated without the planner
and without the catalog.  What a number of micro-batches would take is null where nothing fits.
"""

from __future__ import annotations

import math
from typing import Any

from meshwise.cluster.collectives import COLLECTIVES
from meshwise.cluster.description.cluster_file import cluster_fields
from meshwise.cluster.spec import ClusterSpec
from meshwise.errors import ClusterError, PlanError
from meshwise.plan.counts.collectives import Collective
from meshwise.plan.counts.contents import Argument, DenseOperator, OtherOperators
from meshwise.plan.counts.flop import Replicated
from meshwise.plan.files.forms import (
    COUNT,
    FLAG,
    NUMBER,
    POSITIVE,
    SIZE,
    TEXT,
    Form,
    line_of,
    list_of,
    one_of,
    or_none,
    pair_of,
    read_fields,
    record,
    written,
)
from meshwise.plan.files.json_decision import DECISION
from meshwise.plan.files.json_mesh import LAYOUT, LAYOUTS, MESH
from meshwise.plan.files.json_older import OLDER_PIPELINES, OLDER_PLANS, PIPELINE_FORMAT
from meshwise.plan.files.json_read import Json, document
from meshwise.plan.files.json_write import json_text
from meshwise.plan.padding import PaddedDim, Padding
from meshwise.plan.peak_part import PeakPart
from meshwise.plan.record import PlanRecord
from meshwise.plan.rivals import MemoryPrice, Rival, Way
from meshwise.plan.stage import REMATS, Layer, Stage, WeightGradients
from meshwise.resharding.between import Passing
from meshwise.resharding.cross_mesh.strategies import STRATEGIES

FORMAT = "meshwise-plan"
VERSION = 6
# They follow from the stages, and are written for readers only.
_SUMS = ("peak_bytes", "device_flop")


def _read_cluster(value: Json, where: str) -> ClusterSpec:
    try:
        name, groups = cluster_fields(value, f"field {where!r}")
    except ClusterError as error:
        raise PlanError(str(error)) from error
    return ClusterSpec(name=name, groups=groups)


def _read_seconds(value: Json, where: str) -> float:
    return math.inf if value is None else POSITIVE.read(value, where)


def _write_seconds(seconds: float) -> Json:
    return float(seconds) if math.isfinite(seconds) else None


_BY_KIND = line_of(pair_of(TEXT, POSITIVE))
_ARGUMENT = record(
    Argument,
    {
        "name": TEXT,
        "shape": line_of(SIZE),
        "dtype": TEXT,
        # 0 in files that did not say it.
        "itemsize": SIZE,
        "layout": LAYOUT,
        "communication": _BY_KIND,
        "in_host": FLAG,
    },
    optional=("in_host",),
)
_LAYER = record(
    Layer,
    {
        "layer": SIZE,
        "equal_to": SIZE,
        "arguments": list_of(_ARGUMENT),
        "decision": or_none(SIZE),
    },
)
_DENSE = record(
    DenseOperator,
    {
        "where": TEXT,
        "operands": LAYOUTS,
        "results": LAYOUTS,
        "count": COUNT,
        "device_flop": NUMBER,
        "compute_s": POSITIVE,
        "memory_s": POSITIVE,
        "communication": _BY_KIND,
    },
)
_OTHERS = record(OtherOperators, {"where": TEXT, "count": COUNT, "seconds": POSITIVE})
_WEIGHTS = record(WeightGradients, {"seconds": POSITIVE, "held_bytes": SIZE, "waiting": SIZE})
_PASSING = record(Passing, {"sent": POSITIVE, "received": POSITIVE})
_STAGE = record(
    Stage,
    {
        "layers": list_of(_LAYER),
        "submesh": pair_of(COUNT, COUNT),
        "first_device": SIZE,
        "mesh": MESH,
        "remat": one_of(REMATS),
        "forward_s": POSITIVE,
        "backward_s": POSITIVE,
        "forward_gather_s": POSITIVE,
        "backward_gather_s": POSITIVE,
        "once_s": POSITIVE,
        "resident_bytes": SIZE,
        "microbatch_bytes": SIZE,
        "temporary_bytes": SIZE,
        "in_flight": SIZE,
        "waiting_bytes": SIZE,
        "memory_bytes": SIZE,
        "send_bytes": SIZE,
        "device_flop": POSITIVE,
        "dense": list_of(_DENSE),
        "others": list_of(_OTHERS),
        "weights": or_none(_WEIGHTS),
        "gradient_bytes": or_none(SIZE),
        "forward_passing": or_none(_PASSING),
        "backward_passing": or_none(_PASSING),
    },
    optional=("others", "forward_passing", "backward_passing", "gradient_bytes"),
)
_COLLECTIVE = record(
    Collective,
    {
        "kind": one_of(COLLECTIVES),
        "axes": line_of(TEXT),
        "group_size": COUNT,
        "num_bytes": SIZE,
        "count": COUNT,
        "stage": SIZE,
        "where": TEXT,
        "sharers": SIZE,
    },
    optional=("sharers",),
)
_WAY = record(Way, {"operands": LAYOUTS, "results": LAYOUTS})
_PEAK_PART = record(PeakPart, {"role": TEXT, "where": TEXT, "count": SIZE, "num_bytes": SIZE})
_RIVAL = record(
    Rival,
    {
        "what": TEXT,
        "count": COUNT,
        "chosen": _WAY,
        "rival": or_none(_WAY),
        "step_time_s": or_none(POSITIVE),
        "status": TEXT,
    },
)
_MEMORY_PRICE = record(
    MemoryPrice,
    {"more_bytes": COUNT, "step_time_s": POSITIVE, "peak_bytes": SIZE, "status": TEXT},
)
_REPLICATED = record(
    Replicated,
    {"flop_share": NUMBER, "bytes_share": NUMBER, "largest": line_of(pair_of(TEXT, SIZE))},
)
_PADDED_DIM = record(
    PaddedDim, {"number": SIZE, "size": COUNT, "padded_size": COUNT, "where": line_of(TEXT)}
)
_PADDING = record(
    Padding, {"dims": list_of(_PADDED_DIM), "unpadded_step_time_s": or_none(POSITIVE)}
)
_PLAN = {
    "step_time_s": POSITIVE,
    "stages": list_of(_STAGE),
    "decisions": list_of(DECISION),
    "collectives": list_of(_COLLECTIVE),
    "cluster": or_none(Form(_read_cluster, ClusterSpec.table)),
    "model": TEXT,
    "batch_size": SIZE,
    "num_microbatches": COUNT,
    "schedule": TEXT,
    "hides_transfers": FLAG,
    "transfers": one_of(tuple(STRATEGIES)),
    "delays": list_of(SIZE),
    "formula_s": POSITIVE,
    "bubble_share": NUMBER,
    "exposed_s": POSITIVE,
    "tried": list_of(pair_of(COUNT, Form(_read_seconds, _write_seconds))),
    "step_flop": POSITIVE,
    "tied": list_of(TEXT),
    "cuts": list_of(pair_of(SIZE, SIZE)),
    "method": TEXT,
    "objective": TEXT,
    "gap": or_none(POSITIVE),
    "space": TEXT,
    "status": TEXT,
    "fingerprint": TEXT,
    "replicated": _REPLICATED,
    "parameters": list_of(pair_of(SIZE, TEXT)),
    "spelling": list_of(pair_of(TEXT, TEXT)),
    "peak_parts": list_of(_PEAK_PART),
    "rivals": list_of(_RIVAL),
    "memory_price": or_none(_MEMORY_PRICE),
    "warnings": list_of(TEXT),
    "padding": _PADDING,
    "joins_attention": FLAG,
    "joins_experts": FLAG,
    "verified": TEXT,
}
# Left out where they are empty.
_OPTIONAL = ("verified", "transfers", "joins_attention", "joins_experts", "spelling", "peak_parts")


def plan_to_json(plan: PlanRecord) -> str:
    """Return the JSON text of a plan.

    Raises:
        PlanError: a number is infinite or not a number.
    """
    sums = {"peak_bytes": plan.peak_bytes, "device_flop": float(plan.device_flop)}
    fields = {n: x for n, x in written(plan, _PLAN).items() if x or n not in _OPTIONAL}
    return json_text({"format": FORMAT, "version": VERSION, **sums, **fields})


def fields_from_json(text: str) -> dict[str, Any]:
    """Return the fields of the plan that a text describes, also one of an earlier version.

    Raises:
        PlanError: naming the field that is missing, unknown or wrong.
    """
    older = {FORMAT: OLDER_PLANS, PIPELINE_FORMAT: OLDER_PIPELINES}
    data = document(text, VERSION, older, FORMAT)
    told = {key: data.pop(key) for key in _SUMS if key in data}
    known = {n: form for n, form in _PLAN.items() if n not in _OPTIONAL or n in data}
    found = read_fields(data, known)
    if not found["stages"]:
        raise PlanError("field 'stages': a plan needs at least one stage")
    for number, stage in enumerate(found["stages"]):
        if not stage.layers:
            raise PlanError(f"field 'stages[{number}].layers': a stage needs at least one layer")
    plan = PlanRecord(**found)
    for key, value in told.items():
        if value != getattr(plan, key):
            raise PlanError(
                f"field {key!r}: {value!r} is not that of the worst stage, {getattr(plan, key)!r}"
            )
    return found
