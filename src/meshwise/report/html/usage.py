"""How a plan is run, and how far its numbers are to be trusted."""

from __future__ import annotations

import re

from meshwise.plan.plan import Plan
from meshwise.plan.record import ONE_PROGRAM
from meshwise.report.accuracy import Finding, accuracy_of
from meshwise.report.html.markup import escaped, html_table


def usage_section(plan: Plan) -> str:
    """Return the section of the page."""
    count = plan.num_microbatches
    asked = f", num_microbatches={count}" if count > 1 else ""
    code = (
        "import meshwise as mw\n\n"
        "# The file of `meshwise plan --out plan.json`, or of `plan.to_json()`.\n"
        'plan = mw.Plan.from_json(open("plan.json").read())\n'
        "# The parallelize that planned it: mw.nnx.parallelize, mw.eqx.parallelize, or this one.\n"
        "# For a plan of `meshwise plan --step`: mw.eqx.parallelize for modules of Equinox, this\n"
        "# one for all else, also for a step that returns its modules of Flax NNX.\n"
        f"step = mw.parallelize(train_step, method=mw.Replay(plan){asked})\n"
        "state, loss = step(state, batch)"
    )
    return f"<h2>To run it</h2><pre>{escaped(code)}</pre>{_trust(plan)}"


def _trust(plan: Plan) -> str:
    """Return what the numbers stand on, and how near such numbers came to what was measured."""
    names = list(dict.fromkeys(stage.mesh.device.name for stage in plan.stages))
    says = [
        f"Seconds follow from what the description of the cluster says of {' and '.join(names)}, "
        "and of links: FLOP/s, bytes/s and latencies. `meshwise calibrate` measures them on "
        "devices that are there.",
        "The memory that may be used of a GPU known by name is nine tenths of what its data sheet "
        "says: the rest is left to the runtime, to NCCL and to gaps. A cluster file, "
        "or a limit, says otherwise.",
        "Bytes of collectives are those of the program, exactly. Memory is a prediction; "
        + (
            f"{plan.verified[0].upper()}{plan.verified[1:]}."
            if plan.verified
            else "`meshwise verify` asks the compiler of the devices, without the devices."
        ),
    ]
    if plan.schedule != ONE_PROGRAM:
        says.append(
            "The pipeline is simulated, task by task. `meshwise train --stages ... --trace` "
            "measures a step, mesh by mesh."
        )
    rows = [
        _accuracy(what, finding)
        for name in names
        for what, finding in (
            (f"memory, {name}", accuracy_of(name).memory),
            (f"step time, {name}", accuracy_of(name).time),
        )
    ]
    return (
        "<h2>How exact the predictions are</h2>"
        + "".join(f"<p>{_with_code(text)}</p>" for text in says)
        + html_table(("predicted", "compared with what was compiled or measured"), rows, "ww")
    )


def _accuracy(what: str, finding: Finding) -> tuple[str, str]:
    """Return a row: what a comparison found, and the pages that have it."""
    pages = ", ".join(dict.fromkeys(f"docs/measurements/{page}" for page, _ in finding.quotes))
    source = f"<small>{escaped(pages)}</small>" if pages else ""
    return escaped(what), _with_code(finding.says[0].upper() + finding.says[1:]) + "." + source


def _with_code(text: str) -> str:
    """Return a text as HTML; what stands between backticks is code."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escaped(text))
