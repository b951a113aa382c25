"""How long planned layers take on the devices of this process.

A layer runs as the same programs in a pipeline.  All devices run at once, in groups as large as
the mesh, so that devices which share a host's cores are measured with their share.

Source: Alpa section 5.2 measures stages so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from jax.sharding import Mesh

from meshwise.calibrate.timed_program import Measurable, measurable
from meshwise.cluster.mesh import LogicalMesh
from meshwise.errors import ClusterError
from meshwise.plan.decision import GraphDecision
from meshwise.plan.stage import Remat
from meshwise.runtime.devices import Device
from meshwise.runtime.pipeline.build import programs_alone
from meshwise.trace.layers.layering import Layering
from meshwise.units import counted

# Programs -> seconds of each.
Measure = Callable[[Sequence[Measurable]], list[float]]
_GROUPS = "groups"
_LOOP = ("forward", "backward")


class MeasuredTimes:
    """Seconds of planned layers; equal plans are measured once."""

    def __init__(
        self,
        layers: Layering,
        devices: Sequence[Device],
        measure: Measure,
        report: Callable[[str], object] = lambda _: None,
    ) -> None:
        """Begin.

        Args:
            layers: The layers of the step.
            devices: The devices of this process.
            measure: Measures programs.
            report: Is told of progress.
        """
        self._layers, self._devices = layers, list(devices)
        self._measure, self._report = measure, report
        self._known: dict[object, tuple[float, float]] = {}

    def __call__(
        self,
        layer: int,
        mesh: LogicalMesh,
        remat: Remat,
        num_microbatches: int,
        decision: GraphDecision,
    ) -> tuple[float, float]:
        """Return seconds of all micro-batches of a step, and of what runs once a step.

        Raises:
            ClusterError: the mesh has more devices than there are.
            TraceError: the layer cannot be run.
            ProgramError: a program cannot be measured.
        """
        key = (layer, mesh, remat, num_microbatches, decision)
        if key not in self._known:
            sizes = "x".join(map(str, mesh.sizes))
            self._report(f"measuring layer {layer} on {sizes}, remat {remat}")
            self._known[key] = self._measured(layer, mesh, remat, num_microbatches, decision)
        return self._known[key]

    def _measured(
        self, layer: int, mesh: LogicalMesh, remat: Remat, count: int, decision: GraphDecision
    ) -> tuple[float, float]:
        made = self._layers.program(layer, layer, count, remat)
        devices = self._grouped(mesh)
        programs = programs_alone(layer, made, decision, mesh, devices)
        # What has no results does nothing.
        asked = {
            name: measurable(f"{name} of layer {layer}", program, devices)
            for name, program in programs.named()
            if program.function.outputs
        }
        spent = dict(zip(asked, self._measure(list(asked.values())), strict=True))
        loop_s = count * sum(spent.get(name, 0.0) for name in _LOOP)
        return loop_s, math.fsum(s for name, s in spent.items() if name not in _LOOP)

    def _grouped(self, mesh: LogicalMesh) -> Mesh:
        """Return the devices of this process in groups of the mesh's shape."""
        groups = len(self._devices) // mesh.num_devices
        if not groups:
            raise ClusterError(
                f"a mesh of {counted(mesh.num_devices, 'device')} cannot be measured: this process "
                f"sees {len(self._devices)}; plan for these, or without measuring"
            )
        used = np.asarray(self._devices[: groups * mesh.num_devices], dtype=object)
        return Mesh(used.reshape(groups, *mesh.sizes), (_GROUPS, *mesh.names))
