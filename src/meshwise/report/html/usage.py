"""How a plan is run, and how far its numbers are to be trusted."""

from __future__ import annotations

from meshwise.plan.plan import Plan
from meshwise.plan.record import ONE_PROGRAM
from meshwise.report.html.markup import escaped


def usage_section(plan: Plan) -> str:
    """Return the section of the page."""
    count = plan.num_microbatches
    asked = f", num_microbatches={count}" if count > 1 else ""
    code = (
        "import meshwise as mw\n\n"
        'plan = mw.Plan.from_json(open("plan.json").read())  # of meshwise plan --out plan.json\n'
        f"step = mw.parallelize(train_step, method=mw.Replay(plan){asked})\n"
        "state, loss = step(state, batch)"
    )
    return f"<h2>To run it</h2><pre>{escaped(code)}</pre>{_trust(plan)}"


def _trust(plan: Plan) -> str:
    """Return what the numbers stand on."""
    name = plan.stages[0].mesh.device.name
    says = [
        f"Seconds follow from what the description of the cluster says of {name} and its links: "
        "FLOP/s, bytes/s and latencies. `meshwise calibrate` measures them on devices that are "
        "there.",
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
    return "".join(f"<p>{escaped(text)}</p>" for text in says)
