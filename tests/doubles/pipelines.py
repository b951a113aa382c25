"""Pipelines that no planner made."""

from __future__ import annotations

import dataclasses
from typing import Any

from meshwise.cluster.mesh import LogicalMesh
from meshwise.cluster.spec import ClusterSpec
from meshwise.graph.layout import Layout
from meshwise.plan.counts.contents import Argument
from meshwise.plan.plan import Plan
from meshwise.plan.stage import Layer, Stage
from meshwise.simulate.plan import simulate_plan
from meshwise.units import GIB

_BLOCK = (
    ("attention/query/kernel", (64, 8, 8), Layout(((), (0,), ()))),
    ("mlp/up/kernel", (64, 256), Layout(((), (0, 1)))),
    ("mlp/up/bias", (256,), Layout(((0, 1),))),
    ("norm/scale", (64,), Layout(((),))),
)
_EDGE = ("embedding/table", (512, 64), Layout(((1,), ())))


def layer(number: int, num_layers: int) -> Layer:
    """A block with Adam's state; the first and the last hold a table too."""
    is_edge = number in (0, num_layers - 1)
    tensors = (*_BLOCK, *((_EDGE,) if is_edge else ()))
    return Layer(
        layer=number,
        equal_to=number if is_edge else 1,
        arguments=tuple(
            Argument(
                name=f"0/{head}/block_{number}/{name}",
                shape=shape,
                dtype="float32",
                itemsize=4,
                layout=layout,
            )
            for head in ("params", "opt/mu", "opt/nu")
            for name, shape, layout in tensors
        ),
    )


def pipeline(
    num_stages: int = 2,
    num_microbatches: int = 8,
    cluster: str | ClusterSpec = "1x p3.8xlarge",
    layers_a_stage: int = 3,
    **changes: Any,
) -> Plan:
    """Equal stages, the last one a little slower, each on as many devices as there are for it."""
    where = ClusterSpec.virtual(cluster) if isinstance(cluster, str) else cluster
    each = where.num_devices // num_stages
    size = min(each, where.devices_per_host)
    shape = (2, each // 2) if each > 1 else (1, 1)
    mesh: LogicalMesh = where.mesh(shape)
    num_layers = num_stages * layers_a_stage
    stages = tuple(
        Stage(
            submesh=(each // size, size),
            first_device=k * each,
            mesh=mesh,
            remat="full" if k % 2 else "none",
            forward_s=0.010 + 0.001 * (k == num_stages - 1),
            backward_s=0.020 + 0.003 * (k == num_stages - 1),
            forward_gather_s=0.0,
            backward_gather_s=0.0,
            once_s=0.005,
            resident_bytes=4 * GIB,
            microbatch_bytes=GIB // 2,
            temporary_bytes=GIB // 4,
            in_flight=min(num_stages - k, num_microbatches),
            memory_bytes=where.device.memory_bytes,
            send_bytes=0 if k == num_stages - 1 else 4_000_000,
            layers=tuple(
                layer(n, num_layers) for n in range(k * layers_a_stage, (k + 1) * layers_a_stage)
            ),
        )
        for k in range(num_stages)
    )
    plan = Plan(
        cluster=where,
        batch_size=4 * num_microbatches,
        num_microbatches=num_microbatches,
        schedule="1f1b",
        hides_transfers=False,
        stages=stages,
        step_time_s=0.0,
        gap=num_stages / (num_microbatches + num_stages),
        space=f"{num_stages} stages of whole layers, hand-made",
        formula_s=(num_microbatches + num_stages) * 0.03,
        bubble_share=0.0,
        exposed_s=0.0,
        tried=((1, float("inf")), (num_microbatches, (num_microbatches + num_stages) * 0.03)),
        step_flop=1e15,
        tied=("0/params/block_0/embedding/table",),
        model="hand-made",
        method="Auto(stages='auto')",
    )
    timeline = simulate_plan(plan).timeline
    known = dataclasses.replace(
        plan,
        step_time_s=timeline.step_time_s,
        bubble_share=timeline.bubble_share,
        exposed_s=max(timeline.exposed_s),
    )
    return dataclasses.replace(known, **changes)


def with_memory(plan: Plan, *memory_bytes: int) -> Plan:
    """The plan as a file says it whose stages have that much memory."""
    stages = tuple(
        dataclasses.replace(stage, memory_bytes=size)
        for stage, size in zip(plan.stages, memory_bytes, strict=True)
    )
    return dataclasses.replace(plan, stages=stages)
