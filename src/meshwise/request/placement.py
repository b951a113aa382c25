"""Where a plan has the state of a step, for plans of the same step for other shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jax.sharding import PartitionSpec

from meshwise.cluster.mesh import LogicalMesh
from meshwise.graph.graph import Graph
from meshwise.graph.layout import Layout
from meshwise.plan.plan import Plan
from meshwise.plan.record import ONE_PROGRAM
from meshwise.request.pins import EXACTLY


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """Where an argument lies.

    Attributes:
        first_device: Number of the first device of its mesh.
        mesh: Sizes of the axes of its mesh.
        layout: How it is split.
    """

    first_device: int
    mesh: tuple[int, ...]
    layout: Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a plan has the state of a step.

    Attributes:
        plan: The plan.
        state: Paths of the arguments that are no batch data.
    """

    plan: Plan
    state: frozenset[str]

    def homes(self, plan: Plan | None = None) -> Mapping[str, frozenset[Home]]:
        """Return where state lies; what several stages have lies in several places.

        Args:
            plan: By which plan; None: by that of the placement.
        """
        found: dict[str, set[Home]] = {}
        for stage in (self.plan if plan is None else plan).stages:
            for item in stage.arguments:
                if self._is_state(item.name):
                    home = Home(
                        first_device=stage.first_device,
                        mesh=stage.mesh.sizes,
                        layout=item.layout,
                    )
                    found.setdefault(item.name, set()).add(home)
        return {name: frozenset(homes) for name, homes in found.items()}

    def moved(self, plan: Plan) -> list[str]:
        """Return the paths of state that another plan has elsewhere."""
        before, after = self.homes(), self.homes(plan)
        return [name for name, homes in before.items() if after.get(name) != homes]

    def layouts(self, graph: Graph, mesh: LogicalMesh) -> dict[int, tuple[Layout, ...]]:
        """Return the layouts of arguments on one mesh, by input position.

        Args:
            graph: The graph of the step for other shapes.
            mesh: The mesh; on another one than that of the placement nothing is fixed.
        """
        if mesh.sizes != self.plan.stages[0].mesh.sizes:
            return {}
        known = {
            item.name: item for item in self.plan.stages[0].arguments if item.name in self.state
        }
        found: dict[int, tuple[Layout, ...]] = {}
        for position, ident in enumerate(graph.inputs):
            tensor = graph.tensors[ident]
            item = known.get(tensor.name)
            if item is not None and item.shape == tensor.shape:
                found[position] = (item.layout,)
        return found

    def pins(self) -> dict[str, object]:
        """Return what fixes the stages of a pipeline, their meshes, and the layouts of state."""
        pins: dict[str, object] = {
            "stages": ",".join(f"{s.first_layer}-{s.last_layer}" for s in self.plan.stages)
        }
        homes = self.homes()
        for number, stage in enumerate(self.plan.stages):
            pins[f"submesh.{number}"] = "x".join(map(str, stage.submesh))
            pins[f"mesh.{number}"] = "x".join(map(str, stage.mesh.sizes)) or "1"
            for item in stage.arguments:
                if len(homes.get(item.name, ())) == 1:
                    pins[EXACTLY + item.name] = _spec(item.layout, stage.mesh)
        return pins

    def _is_state(self, name: str) -> bool:
        # A pipeline has what was stacked layer by layer, as `0/params/kernel[3]`.
        return name in self.state or name.rpartition("[")[0] in self.state

    @property
    def has_stages(self) -> bool:
        """Whether the plan is a pipeline."""
        return self.plan.schedule != ONE_PROGRAM


def _spec(layout: Layout, mesh: LogicalMesh) -> PartitionSpec:
    return PartitionSpec(
        *(tuple(mesh.names[axis] for axis in axes) or None for axes in layout.dims)
    )
