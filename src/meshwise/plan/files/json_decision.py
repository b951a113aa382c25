"""The JSON form of a decision about a graph.

Layouts are written as `graph.layout` prints them.  A use is `layout`, with ` via LAYOUT` where a
shared copy is made first and ` group N` for groups other than 0.
"""

from __future__ import annotations

import re

from meshwise.graph.layout import layout_text
from meshwise.plan.decision import GraphDecision, OperatorDecision, Use
from meshwise.plan.files.forms import SIZE, TEXT, WHOLE, Form, line_of, list_of, record
from meshwise.plan.files.json_mesh import LAYOUTS, read_layout
from meshwise.plan.files.json_read import Json

_USE = re.compile(r"(?P<layout>.*?)(?: via (?P<via>.*?))?(?: group (?P<group>-?[0-9]{1,9}))?")


def _use_text(use: Use) -> str:
    via = "" if use.via == use.layout else f" via {layout_text(use.via)}"
    group = f" group {use.group}" if use.group else ""
    return f"{layout_text(use.layout)}{via}{group}"


def _read_use(value: Json, where: str) -> Use:
    match = _USE.fullmatch(TEXT.read(value, where))
    assert match is not None  # the first group matches anything
    layout = read_layout(match["layout"], where)
    via = layout if match["via"] is None else read_layout(match["via"], where)
    return Use(group=int(match["group"] or 0), via=via, layout=layout)


def _read_body(value: Json, where: str) -> GraphDecision:
    return DECISION.read(value, where)


def _write_body(body: GraphDecision) -> Json:
    return DECISION.write(body)


_USES = list_of(Form(_read_use, _use_text))
_OPERATOR = record(
    OperatorDecision,
    {
        "strategy": list_of(WHOLE),
        "uses": _USES,
        "results": LAYOUTS,
        "bodies": list_of(Form(_read_body, _write_body)),
    },
    optional=("bodies",),
)
DECISION = record(
    GraphDecision,
    {
        "inputs": LAYOUTS,
        "operators": list_of(_OPERATOR),
        "outputs": _USES,
        "in_host": line_of(SIZE),
    },
    optional=("in_host",),
)
