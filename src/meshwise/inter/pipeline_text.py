"""A pipeline as a plain text of at most 100 columns."""

from __future__ import annotations

import textwrap

from meshwise.inter.pipeline_memory import pipeline_memory
from meshwise.inter.pipeline_plan import LayerPlan, PipelinePlan, PipelineStage
from meshwise.plan.columns import WIDTH, layout_spec, shortened, table, with_space_below
from meshwise.units import bytes_text, seconds_text

_LONGEST_NAME = 44


def pipeline_text(plan: PipelinePlan) -> str:
    """The plan as text, from nothing but the plan; one that does not fit says so first."""
    lines = [
        *with_space_below(pipeline_memory(plan).warning_lines()),
        *textwrap.wrap(f"pipeline for {plan.model}" if plan.model else "", WIDTH),
        *textwrap.wrap(
            f"{len(plan.stages)} stages on {plan.cluster.name}, batch {plan.batch_size} in "
            f"{plan.num_microbatches} micro-batches, schedule {plan.schedule}",
            WIDTH,
        ),
        f"step {seconds_text(plan.step_time_s)} predicted, {seconds_text(plan.simulated_s)} "
        f"simulated; bubble {plan.bubble_share:.1%}; waiting for transfers at most "
        f"{seconds_text(plan.exposed_s)}",
        f"peak memory {bytes_text(plan.peak_bytes)} a device",
        *textwrap.wrap(f"at most {plan.gap:.2%} above the best of: {plan.space}", WIDTH),
        "",
        *table(
            ("stage", "layers", "devices", "mesh", "remat", "forward", "backward", "gathers",
             "once", "peak", "sends"),
            [_row(k, stage) for k, stage in enumerate(plan.stages)],
            "rllllrrrrrr",
        ),
    ]  # fmt: skip
    lines += _shared_meshes(plan)
    lines += _weights_apart(plan)
    lines += ["", "step time by number of micro-batches (best found)"]
    rows = [
        (str(b), seconds_text(s) if s < float("inf") else "nothing faster") for b, s in plan.tried
    ]
    lines += table(("micro-batches", "step"), rows, "rr")
    shown: set[object] = set()
    for k, stage in enumerate(plan.stages):
        for layer in stage.layers:
            kind = (layer.equal_to, stage.mesh.sizes, tuple(w for _, _, w in layer.inputs))
            if kind not in shown:
                shown.add(kind)
                rows = _layouts(layer, stage)
                if rows:
                    lines += ["", f"layer {layer.layer} in stage {k}, mesh {_sizes(stage)}", *rows]
    if plan.tied:
        lines += ["", "parameters that several layers read: " + ", ".join(plan.tied)]
    return "\n".join(lines) + "\n"


def _row(number: int, stage: PipelineStage) -> tuple[str, ...]:
    hosts, devices = stage.submesh
    last = stage.first_device + hosts * devices - 1
    return (
        str(number),
        f"{stage.first_layer}-{stage.last_layer}",
        f"{stage.first_device}-{last}",
        _sizes(stage),
        stage.remat,
        seconds_text(stage.forward_s),
        seconds_text(stage.backward_s),
        seconds_text(stage.gather_s) if stage.gather_s else "-",
        seconds_text(stage.once_s),
        bytes_text(stage.peak_bytes),
        bytes_text(stage.send_bytes) if stage.send_bytes else "-",
    )


def _shared_meshes(plan: PipelinePlan) -> list[str]:
    """Where meshes have several stages, which, and what these need together."""
    if plan.num_meshes == len(plan.stages):
        return []
    rows = [
        (
            str(mesh),
            ", ".join(str(k) for k, m in enumerate(plan.mesh_of_stage) if m == mesh),
            bytes_text(peak),
        )
        for mesh, peak in enumerate(plan.mesh_peak_bytes)
    ]
    return ["", "stages that share a mesh", *table(("mesh", "stages", "peak"), rows, "rlr")]


def _weights_apart(plan: PipelinePlan) -> list[str]:
    """Where the backward pass is split, what runs later and what waits for it."""
    rows = [
        (
            str(k),
            seconds_text(stage.weights.seconds),
            str(plan.delays[k]) if plan.delays else "-",
            str(stage.weights.waiting),
            bytes_text(stage.weights.held_bytes),
        )
        for k, stage in enumerate(plan.stages)
        if stage.weights is not None
    ]
    if not rows:
        return []
    names = ("stage", "of backward", "half steps later", "waiting at the peak", "each holds")
    return ["", "gradients of weights apart", *table(names, rows, "rrrrr")]


def _sizes(stage: PipelineStage) -> str:
    return "x".join(map(str, stage.mesh.sizes))


def _layouts(layer: LayerPlan, stage: PipelineStage) -> list[str]:
    rows = [
        (
            shortened(name, _LONGEST_NAME),
            "x".join(map(str, shape)),
            layout_spec(w, stage.mesh.names),
        )
        for name, shape, w in layer.inputs
        if len(shape) > 1
    ]
    return table(("state", "shape", "layout"), rows, "lll") if rows else []
