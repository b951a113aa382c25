"""Plan files of either kind: of one mesh, or of a pipeline."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TypeAlias

from meshwise.errors import PlanError
from meshwise.inter.pipeline_json import FORMAT as PIPELINE
from meshwise.inter.pipeline_plan import PipelinePlan
from meshwise.plan.json_form import FORMAT as ONE_MESH
from meshwise.plan.json_read import parsed
from meshwise.plan.plan import Plan

AnyPlan: TypeAlias = Plan | PipelinePlan


def plan_from_text(text: str) -> AnyPlan:
    """The plan that a text of `to_json` describes.

    Raises:
        PlanError: naming the field that is missing, unknown or wrong.
    """
    found = parsed(text).get("format")
    if found == PIPELINE:
        return PipelinePlan.from_json(text)
    if found == ONE_MESH:
        return Plan.from_json(text)
    raise PlanError(
        f"not a plan: the field 'format' must be {ONE_MESH!r} or {PIPELINE!r}, got {found!r:.60}; "
        "`meshwise plan --out FILE` and `plan.to_json()` write plans"
    )


def plan_from_file(path: Path) -> AnyPlan:
    """The plan in a file; `-` is the standard input.

    Raises:
        PlanError: naming the file, and what is wrong in it.
    """
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
        return plan_from_text(text)
    except (OSError, UnicodeDecodeError, PlanError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise PlanError(f"{path}: {reason}") from error
