"""Stages with given submeshes, each layer planned for them: what a search would hand over."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import jax

from meshwise.cluster.mesh import LogicalMesh
from meshwise.cluster.spec import ClusterSpec
from meshwise.inter.layer_cost.layer_network import layer_network
from meshwise.inter.layer_cost.run_costs import cheapest_states, compose, entries
from meshwise.inter.layer_cost.state_costs import BytePrice, ConditionedLayer
from meshwise.intra.options import IntraOptions
from meshwise.plan.stage import Remat
from meshwise.runtime.pipeline.build import StageChoice
from meshwise.trace.layers.layering import Layering

# First layer, last layer, shape of the mesh, rematerialisation.
StageShape = tuple[int, int, tuple[int, ...], Remat]


def logical_mesh(shape: tuple[int, ...]) -> LogicalMesh:
    """A mesh of V100s that compute so slowly that work is split, however small the model.

    Like the CPUs for which stages are compiled they have no units for narrow floats.
    """
    one = ClusterSpec.virtual("p3.16xlarge").mesh((2, 4))
    axes = [replace(one.axes[i % 2], size=size, latency_s=0.0) for i, size in enumerate(shape)]
    wide = dict(one.device.flop_per_s)["float32"]
    slow = replace(
        one.device,
        flop_per_s=tuple(
            (dtype, min(rate, wide) / 1000 * (0.9 if dtype.endswith("16") else 1.0))
            for dtype, rate in one.device.flop_per_s
        ),
        memory_bytes_per_s=one.device.memory_bytes_per_s / 30,
    )
    return replace(one, axes=tuple(axes), device=slow)


def planned_stages(
    layers: Layering, num_microbatches: int, shapes: Sequence[StageShape]
) -> list[StageChoice]:
    """The stages on the devices of this process, one after the other."""
    devices = jax.devices()
    found: list[StageChoice] = []
    at = 0
    options = IntraOptions(memory_bytes=10**12)
    for first, last, shape, remat in shapes:
        mesh = logical_mesh(shape)
        costs = [
            ConditionedLayer(
                layer_network(layers.graph(k, k, num_microbatches, remat), mesh, options),
                BytePrice(),
                exact=False,
            )
            for k in range(first, last + 1)
        ]
        compose(costs)
        plans = entries(costs, 0, cheapest_states(costs, 0, len(costs) - 1))
        size = math.prod(shape)
        found.append(
            StageChoice(
                first_layer=first,
                last_layer=last,
                mesh=mesh,
                devices=tuple(devices[at : at + size]),
                remat=remat,
                decisions=tuple(plan.decision for plan in plans),
            )
        )
        at += size
    return found
