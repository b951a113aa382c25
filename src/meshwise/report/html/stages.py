"""Tables: the stages, and the numbers of micro-batches that were tried."""

from __future__ import annotations

from collections.abc import Sequence

from meshwise.plan.places import placed
from meshwise.plan.plan import Plan
from meshwise.plan.stage import Stage
from meshwise.plan.text.device_memory import plan_memory
from meshwise.plan.text.stage_text import TRIED_NOTE
from meshwise.report.html.markup import escaped, html_table, stage_class
from meshwise.simulate.plan import Simulation
from meshwise.units import bytes_text, range_text, seconds_text

_TIMES = (
    "stage", "layers", "devices", "hosts", "mesh", "remat", "forward", "backward", "gathers",
    "once", "busy", "waits for transfers", "sends",
)  # fmt: skip
_MEMORY = (
    "stage", "held", "each micro-batch", "in flight", "weights apart", "not yet read",
    "temporary", "peak", "simulated", "of",
)  # fmt: skip


def stage_table(plan: Plan, simulation: Simulation) -> str:
    """Return the section of the page."""
    numbers = range(len(plan.stages))
    too_large = plan_memory(plan).too_large
    return (
        "<h2>Stages</h2><p><em>Forward</em>, <em>backward</em> and <em>gathers</em> are seconds of "
        "one micro-batch; gathers put together what other stages send. <em>Once</em> is the "
        "seconds of gradient synchronisation and update in a step. <em>Busy</em> is the share of "
        "the simulated step in which the devices compute or run collectives; what is left of it is "
        "the bubble, and <em>waits for transfers</em> is a part of that. <em>Sends</em> are "
        "activations of one micro-batch.</p>"
        + html_table(_TIMES, [_times(plan, simulation, k) for k in numbers], "rlllll" + "r" * 7)
        + "<p>Bytes of one device. <em>Held</em> all the time are parameters, optimizer state and "
        "gradients. <em>Each micro-batch</em> is what one holds from its forward pass to its "
        "backward pass, <em>in flight</em> how many of them do when the mesh holds most; of "
        "stages that share a mesh one may have none then. <em>Weights apart</em> is what waits for "
        "gradients of weights that run later. <em>Not yet read</em> are values that wait for the "
        "layer that reads them, and rows of the batch. <em>Temporary</em> is needed on top while a "
        "program runs. All that together is the <em>peak</em>. <em>Simulated</em> is the peak in "
        "the simulated step, <em>of</em> the memory of a device; both are of the whole mesh where "
        "stages share one.</p>"
        + html_table(_MEMORY, [_memory(plan, simulation, k, too_large) for k in numbers], "r" * 10)
    )


def _times(plan: Plan, simulation: Simulation, number: int) -> tuple[str, ...]:
    stage, timeline, mesh = plan.stages[number], simulation.timeline, plan.mesh_of_stage[number]
    busy_s, step_s = timeline.busy_s[mesh], timeline.step_time_s
    return (
        _badge(number),
        range_text(stage.first_layer, stage.last_layer),
        range_text(stage.first_device, stage.first_device + stage.num_devices - 1),
        _hosts(stage, plan),
        " ".join(f"{escaped(axis.name)}={axis.size}" for axis in stage.mesh.axes),
        escaped(stage.remat),
        seconds_text(stage.forward_s),
        seconds_text(stage.backward_s),
        seconds_text(stage.gather_s) if stage.gather_s else "-",
        seconds_text(stage.once_s),
        f"{busy_s / step_s:.1%}" if step_s else "-",
        seconds_text(timeline.exposed_s[mesh]),
        bytes_text(stage.send_bytes) if stage.send_bytes else "-",
    )


def _memory(
    plan: Plan, simulation: Simulation, number: int, too_large: Sequence[int]
) -> tuple[str, ...]:
    """Bytes of one stage; `too_large` are the meshes that do not fit by the prediction."""
    stage, timeline, mesh = plan.stages[number], simulation.timeline, plan.mesh_of_stage[number]
    return (
        _badge(number),
        bytes_text(stage.resident_bytes),
        bytes_text(stage.microbatch_bytes),
        str(stage.in_flight),
        bytes_text(stage.late_bytes) if stage.late_bytes else "-",
        bytes_text(stage.waiting_bytes),
        bytes_text(stage.temporary_bytes),
        _marked(stage.peak_bytes, mesh in too_large),
        _marked(timeline.peak_bytes[mesh], mesh in simulation.too_large),
        bytes_text(simulation.memory_bytes[mesh]),
    )


def _badge(number: int) -> str:
    return f'<span class="badge {stage_class(number)}">{number}</span>'


def _marked(num_bytes: int, is_too_large: bool) -> str:
    """Bytes, red where they are more than a device has."""
    text = bytes_text(num_bytes)
    return f'<span class="over">{text}</span>' if is_too_large else text


def _hosts(stage: Stage, plan: Plan) -> str:
    assert plan.cluster is not None  # the plan was simulated there
    place = placed(stage, plan.cluster)
    return range_text(place.hosts.start, place.hosts.stop - 1)


def tried_table(plan: Plan) -> str:
    """Step time by number of micro-batches; nothing where only one was tried."""
    if len(plan.tried) < 2:
        return ""
    rows = [
        (
            f"<strong>{count}</strong>" if count == plan.num_microbatches else str(count),
            seconds_text(seconds) if seconds < float("inf") else "nothing faster",
        )
        for count, seconds in plan.tried
    ]
    return (
        "<h2>Numbers of micro-batches</h2><p>The best step time that was found with each, by the "
        f"formula of the search. {TRIED_NOTE}</p>"
        + html_table(("micro-batches", "step"), rows, "rr")
    )
