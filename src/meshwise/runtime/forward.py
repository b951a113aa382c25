"""A step without gradients on the stages of a pipeline: a program for each, one after the other."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from meshwise.plan.plan import Plan
from meshwise.runtime.devices import devices_for
from meshwise.runtime.donation import check_alive
from meshwise.runtime.executable import Executable, compile_step
from meshwise.runtime.fidelity import StageFidelity
from meshwise.runtime.host_rows import HostRows, Span, merged, rows_on_devices
from meshwise.runtime.job.job import Job
from meshwise.runtime.pipeline.stacked_ends import StackedEnds
from meshwise.runtime.placement import Argument
from meshwise.runtime.scalars import EveryProcess
from meshwise.runtime.transports.choice import transport_of
from meshwise.runtime.transports.tile_copier import TileCopier
from meshwise.spmd.part import border_spec
from meshwise.spmd.program import concrete_mesh
from meshwise.trace.layers.forward.followed import FollowedStages
from meshwise.trace.layers.forward.stages import ForwardStages
from meshwise.trace.layers.stacks.unstack import Unstacked
from meshwise.trace.step import abstract
from meshwise.trace.weak_types import with_weak_types


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardExecutable:
    """A compiled step without gradients.

    Attributes:
        plan: The plan of the step.
        cut: The inputs and results of each stage.
        stages: The programs.
        orders: For each program the input of its stage that each operand is.
        ends: Takes stacks of layers apart and puts them together.
        user: The user's step: its trees, names and arguments.
        copier: Moves arrays between meshes.
        every_process: Brings scalars to all processes of a job; None for this process alone.
        compile_s: Seconds that lowering and compilation took.
    """

    plan: Plan
    cut: ForwardStages
    stages: tuple[Executable, ...]
    orders: tuple[tuple[int, ...], ...]
    ends: StackedEnds
    user: Unstacked
    copier: TileCopier
    every_process: EveryProcess | None
    compile_s: float

    @property
    def out_tree(self) -> Any:
        """The tree of the results."""
        return self.user.original.out_tree

    @property
    def in_shardings(self) -> tuple[NamedSharding | None, ...]:
        """Where each flat argument lives; None for one that may be anywhere."""
        return self.ends.shardings

    def rows_here(self, position: int, dim: int) -> tuple[Span, ...]:
        """Return the rows of a batch leaf that devices of this process take."""
        shape, found = self.user.original.in_avals[position].shape, list[Span]()
        (number,) = self.user.arguments[position].places
        for part, order, stage in zip(self.cut.stages, self.orders, self.stages, strict=True):
            for n, sharding in zip(order, stage.in_shardings, strict=True):
                if part.inputs[n] == ("argument", number):
                    found += rows_on_devices(sharding, shape, dim)
        if ("argument", number) in self.cut.results:
            found.append((0, shape[dim]))
        return merged(found)

    def ready(self, position: int, leaf: HostRows | np.ndarray[Any, Any]) -> Argument:
        """Return the leaf, which moves to the stages that read it when the step begins."""
        return leaf

    def place(self, leaves: Sequence[Argument]) -> Sequence[Argument]:
        """Return the arguments: they move to the stages that read them when the step begins."""
        return leaves

    def run(self, leaves: Sequence[Argument]) -> list[jax.Array]:
        """Run the step; nothing is donated to it.

        Raises:
            StateLostError: an argument was donated to another step.
            TypeError: arguments have other shapes or dtypes; nothing was done with them.
        """
        original = self.user.original
        check_alive(leaves, original.names)
        for leaf, aval, name in zip(leaves, original.in_avals, original.names, strict=True):
            found = abstract(leaf, name)
            if (found.shape, found.dtype) != (aval.shape, aval.dtype):
                raise TypeError(
                    f"argument {name} is {found.dtype}{list(found.shape)}, the step was compiled "
                    f"for {aval.dtype}{list(aval.shape)}"
                )
        try:
            results = self._results(leaves)
        except BaseException as error:
            self.copier.abandon(error)
            raise
        if self.every_process is None:
            return results
        return self.every_process.readable(results, self.copier)

    def _results(self, leaves: Sequence[Argument]) -> list[jax.Array]:
        """Return the results where the stages make them."""
        # What NumPy holds is copied to its device as arrays of other devices are.
        flat, _ = self.ends.arguments(cast(Sequence[jax.Array], leaves))
        there: dict[tuple[str, int], jax.Array] = {
            ("argument", n): value for n, value in enumerate(flat)
        }
        for part, order, stage in zip(self.cut.stages, self.orders, self.stages, strict=True):
            given = (there[part.inputs[n]] for n in order)
            placed = list(map(self.copier.put, given, stage.in_shardings))
            made = zip(part.outputs, stage.outputs(placed), strict=True)
            there.update({("value", number): value for number, value in made})
        # What is handed through may have come as NumPy's.
        found = (there[source] for source in self.cut.results)
        whole = (x.whole() if isinstance(x, HostRows) else x for x in found)
        arrays = [x if isinstance(x, jax.Array) else jnp.asarray(x) for x in whole]
        return with_weak_types(self.ends.results(arrays), self.user.original.weak_results)

    def compiled_text(self) -> dict[str, str]:
        """Return the optimised HLO of each program, by name."""
        return {
            f"stage {part.stage}": stage.compiled_text()["step"]
            for part, stage in zip(self.cut.stages, self.stages, strict=True)
        }

    def measured_peak_bytes(self) -> int:
        """Return the memory of one device of the worst stage, as XLA reports it for its program."""
        return max(stage.measured_peak_bytes() for stage in self.stages)

    def traffic(self) -> dict[str, float]:
        """Return the bytes that pass from stage to stage in a call, each tensor once a stage."""
        return {"bytes_between_meshes": float(sum(s.send_bytes for s in self.plan.stages))}

    def fidelity(self) -> tuple[StageFidelity, ...]:
        """Return for each stage what was predicted, and what was compiled."""
        return tuple(found for stage in self.stages for found in stage.fidelity())


def compile_forward(found: FollowedStages, job: Job | None = None) -> ForwardExecutable:
    """Lower and compile a step without gradients.

    Args:
        found: The step in stages, planned.
        job: The processes on whose devices it runs; None: those of this process.

    Raises:
        ClusterError: the plan needs more devices than there are.
        ProgramError: XLA:CPU would let collectives race.
    """
    start = time.perf_counter()
    devices = devices_for(max(first + mesh.num_devices for mesh, first in found.meshes), job)
    concrete = [
        concrete_mesh(mesh, devices[first : first + mesh.num_devices])
        for mesh, first in found.meshes
    ]
    copier = TileCopier(None if job is None else transport_of(job))
    stages = tuple(
        compile_step(step, alone, tuple(concrete[part.stage].devices.flat), job, copier)
        for step, alone, part in zip(found.steps, found.plans, found.cut.stages, strict=True)
    )
    shardings = [
        home
        and NamedSharding(
            concrete[home.stage], border_spec(home.layout, concrete[home.stage].axis_names)
        )
        for home in found.homes
    ]
    return ForwardExecutable(
        plan=found.plan,
        cut=found.cut,
        stages=stages,
        orders=found.orders,
        ends=StackedEnds(found.ends, shardings, copier),
        user=found.ends,
        copier=copier,
        every_process=None if job is None else EveryProcess(),
        compile_s=time.perf_counter() - start,
    )
