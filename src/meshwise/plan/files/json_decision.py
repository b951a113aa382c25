"""The JSON form of a decision about a graph.

Layouts are written as `graph.layout` prints them.  A use is `layout`, with ` via LAYOUT` where a
shared copy is made first and ` group N` for groups other than 0.
"""

from __future__ import annotations

import re

from meshwise.graph.layout import layout_text
from meshwise.plan.decision import GraphDecision, OperatorDecision, Use
from meshwise.plan.files import json_read as read
from meshwise.plan.files.json_mesh import read_layout
from meshwise.plan.files.json_read import Json, Reader

_USE = re.compile(r"(?P<layout>.*?)(?: via (?P<via>.*?))?(?: group (?P<group>-?\d+))?")


def decision_json(decision: GraphDecision) -> Json:
    """A decision as JSON."""
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
        data["bodies"] = [decision_json(body) for body in operator.bodies]
    return data


def _use_text(use: Use) -> str:
    via = "" if use.via == use.layout else f" via {layout_text(use.via)}"
    group = f" group {use.group}" if use.group else ""
    return f"{layout_text(use.layout)}{via}{group}"


def _use(value: Json, where: str) -> Use:
    match = _USE.fullmatch(read.text(value, where))
    assert match is not None  # the first group matches anything
    layout = read_layout(match["layout"], where)
    via = layout if match["via"] is None else read_layout(match["via"], where)
    return Use(group=int(match["group"] or 0), via=via, layout=layout)


def _operator(value: Json, where: str) -> OperatorDecision:
    known: dict[str, Reader] = {
        "strategy": read.list_of(read.whole),
        "uses": read.list_of(_use),
        "results": read.list_of(read_layout),
    }
    if isinstance(value, dict) and "bodies" in value:
        known["bodies"] = read.list_of(read_decision)
    return read.record(value, where, OperatorDecision, known)


def read_decision(value: Json, where: str) -> GraphDecision:
    """The decision that JSON describes.

    Raises:
        PlanError: naming the field that is missing, unknown or wrong.
    """
    known: dict[str, Reader] = {
        "inputs": read.list_of(read_layout),
        "operators": read.list_of(_operator),
        "outputs": read.list_of(_use),
    }
    return read.record(value, where, GraphDecision, known)
