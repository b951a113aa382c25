"""Earlier JSON forms of plans, as fields of the present one.

Plans of one mesh were `meshwise-plan` of versions 2 and 3: their stage held its decision, they
named no cluster, and version 2 did not say how much memory a plan may use.  Pipelines were
`meshwise-pipeline` of versions 1 to 3: they did not list collectives, dense operators, or the
dtypes of arguments; no stage of versions 1 and 2 splits its backward pass; version 1 had no
decisions, and said nothing of gathering what neighbours send.

Up to version 5 `step_time_s` was what is `formula_s` now, and `simulated_s` what is `step_time_s`.

Nothing is checked here: what is wrong in a file stays wrong and is found by the reader.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import cast

from meshwise.plan.files.json_read import Json, Upgrade
from meshwise.plan.record import ONE_PROGRAM

PIPELINE_FORMAT = "meshwise-pipeline"
_NO_REPLICATION: Json = {"flop_share": 0.0, "bytes_share": 0.0, "largest": []}
_NO_PADDING: Json = {"dims": [], "unpadded_step_time_s": None}


def _items(value: Json) -> list[Json]:
    return cast(list[Json], value) if isinstance(value, list) else []


def _record(value: Json) -> dict[str, Json]:
    return dict(cast(dict[str, Json], value)) if isinstance(value, dict) else {}


def _number(value: Json) -> float:
    return value if isinstance(value, int | float) else 0.0


# -- plans of one mesh ----------------------------------------------------------------------------


def _plan_of_version_5(data: dict[str, Json]) -> dict[str, Json]:
    new = dict(data)
    # A reader says what is missing by the names of today.
    names = {"formula_s": "step_time_s", "step_time_s": "simulated_s"}
    new.pop("simulated_s", None)
    new.pop("step_time_s", None)
    return new | {today: data[then] for today, then in names.items() if then in data}


def _plan_of_version_4(data: dict[str, Json]) -> dict[str, Json]:
    if not isinstance(data.get("stages"), list):
        return _plan_of_version_5(data)
    stages = [_with_waiting(stage) for stage in _items(data["stages"])]
    return _plan_of_version_5(data | {"stages": stages})


def _with_waiting(stage: Json) -> Json:
    match stage:
        case {"in_flight": _}:
            return stage | {"waiting_bytes": 0}
        case _:
            return stage


def _plan_of_version_3(data: dict[str, Json]) -> dict[str, Json]:
    if not isinstance(data.get("stages"), list):
        return data
    stages = _items(data["stages"])
    decisions = [_record(stage).get("decision") for stage in stages]
    step_s, count = data.get("step_time_s"), data.get("num_microbatches")
    new: dict[str, Json] = {
        "stages": [_mesh_stage(stage, number, step_s) for number, stage in enumerate(stages)],
        "decisions": decisions,
        "cluster": None,
        "model": "",
        "batch_size": 0,
        "schedule": data.get("schedule") or ONE_PROGRAM,
        "hides_transfers": False,
        "delays": [],
        "simulated_s": step_s,
        "bubble_share": 0.0,
        "exposed_s": 0.0,
        "tried": [[count, step_s]],
        "step_flop": 0.0,
        "tied": [],
        "cuts": [],
    }
    return _plan_of_version_4(data | new)


def _mesh_stage(stage: Json, number: int, step_s: Json) -> Json:
    if not isinstance(stage, dict):
        return stage
    old = _record(stage)
    decision = _record(old.pop("decision", None))
    arguments, layouts = _items(old.pop("arguments", None)), _items(decision.get("inputs"))
    # One that has no layout is refused as it stands.
    laid = [
        _record(argument) | ({"layout": layouts[n]} if n < len(layouts) else {})
        for n, argument in enumerate(arguments)
    ]
    axes = _items(_record(old.get("mesh")).get("axes"))
    num_devices = 1
    for axis in axes:
        size = _record(axis).get("size")
        num_devices *= size if isinstance(size, int) else 1
    layer: Json = {"layer": number, "equal_to": number, "arguments": laid, "decision": number}
    return old | {
        "layers": [layer],
        "submesh": [1, num_devices],
        "first_device": 0,
        "remat": "none",
        "forward_s": 0.0,
        "backward_s": 0.0,
        "forward_gather_s": 0.0,
        "backward_gather_s": 0.0,
        "once_s": step_s,
        "resident_bytes": 0,
        "microbatch_bytes": 0,
        "temporary_bytes": old.pop("peak_bytes", None),
        "in_flight": 0,
        "send_bytes": 0,
        "weights": None,
    }


def _plan_of_version_2(data: dict[str, Json]) -> dict[str, Json]:
    if not isinstance(data.get("stages"), list):
        return data
    stages: list[Json] = []
    for stage in _items(data["stages"]):
        match stage:
            case {"mesh": {"device": {"memory_bytes": memory_bytes}}}:
                stages.append(stage | {"memory_bytes": memory_bytes})
            case _:
                stages.append(stage)
    return _plan_of_version_3(data | {"stages": stages})


# -- pipelines ------------------------------------------------------------------------------------


def _pipeline_of_version_3(data: dict[str, Json]) -> dict[str, Json]:
    if not isinstance(data.get("stages"), list):
        return data
    new = dict(data)
    bound_s, step_s = _number(new.pop("bound_s", None)), _number(new.get("step_time_s"))
    new |= {
        "stages": [_pipeline_stage(stage) for stage in _items(data["stages"])],
        "collectives": [],
        "method": "",
        "objective": "time",
        "gap": max(0.0, 1 - bound_s / step_s) if step_s else 0.0,
        "status": "",
        "fingerprint": "",
        "replicated": _NO_REPLICATION,
        "parameters": [],
        "rivals": [],
        "memory_price": None,
        "warnings": [],
        "padding": _NO_PADDING,
    }
    return _plan_of_version_4(new)


def _pipeline_stage(stage: Json) -> Json:
    if not isinstance(stage, dict):
        return stage
    old = _record(stage)
    # They follow from the layers.
    old.pop("first_layer", None)
    old.pop("last_layer", None)
    old["layers"] = [_pipeline_layer(layer) for layer in _items(old.get("layers"))]
    nothing: list[Json] = []
    return old | {"device_flop": 0.0, "dense": nothing}


def _pipeline_layer(layer: Json) -> Json:
    if not isinstance(layer, dict):
        return layer
    old = _record(layer)
    old["arguments"] = [_pipeline_argument(item) for item in _items(old.pop("inputs", None))]
    return old


def _pipeline_argument(item: Json) -> Json:
    match item:
        case [name, shape, layout]:
            nothing: list[Json] = []
            known: dict[str, Json] = {"name": name, "shape": shape, "layout": layout}
            return known | {"dtype": "", "itemsize": 0, "communication": nothing}
        case _:
            return item


def _pipeline_of_version_2(data: dict[str, Json]) -> dict[str, Json]:
    stages = [
        _record(stage) | {"weights": None} if isinstance(stage, dict) else stage
        for stage in _items(data.get("stages"))
    ]
    return _pipeline_of_version_3(data | {"stages": stages, "delays": []})


def _pipeline_of_version_1(data: dict[str, Json]) -> dict[str, Json]:
    stages: list[Json] = []
    for stage in _items(data.get("stages")):
        old = _record(stage) | {"forward_gather_s": 0.0, "backward_gather_s": 0.0}
        old["layers"] = [_record(layer) | {"decision": None} for layer in _items(old.get("layers"))]
        stages.append(old)
    return _pipeline_of_version_2(data | {"stages": stages, "cuts": [], "decisions": []})


OLDER_PLANS: Mapping[int, Upgrade] = MappingProxyType(
    {
        2: _plan_of_version_2,
        3: _plan_of_version_3,
        4: _plan_of_version_4,
        5: _plan_of_version_5,
    }
)
OLDER_PIPELINES: Mapping[int, Upgrade] = MappingProxyType(
    {1: _pipeline_of_version_1, 2: _pipeline_of_version_2, 3: _pipeline_of_version_3}
)
