"""A step as a compiled pipeline, on devices of this process or of a job: flat arrays in and out."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import jax
import numpy as np
from jax import Array
from jax.sharding import NamedSharding

from meshwise.cluster.spec import ClusterSpec
from meshwise.jax_compat.arrays import CAN_REFILL
from meshwise.plan.decision import GraphDecision
from meshwise.plan.plan import Plan
from meshwise.program.memory import live_bytes, verify_memory
from meshwise.program.names import StepResult
from meshwise.resharding.cross_mesh.sending import Sending
from meshwise.runtime.devices import Device, devices_for
from meshwise.runtime.donation import (
    Handover,
    check_alive,
    lost_before,
    state_lost,
    without_repeats,
    without_shared_memory,
)
from meshwise.runtime.executable import SEE_OTHERS
from meshwise.runtime.fidelity import StageFidelity
from meshwise.runtime.host_rows import HostRows, Span, merged
from meshwise.runtime.job.job import Job
from meshwise.runtime.pipeline.build import StageChoice
from meshwise.runtime.pipeline.fidelity import stage_fidelities, stage_peaks
from meshwise.runtime.pipeline.interpreter import Pipeline
from meshwise.runtime.pipeline.make_pipeline import make_pipeline
from meshwise.runtime.pipeline.measured import measured_step
from meshwise.runtime.pipeline.stacked_ends import StackedEnds
from meshwise.runtime.pipeline.traffic import bytes_between
from meshwise.runtime.placement import Argument
from meshwise.runtime.scalars import EveryProcess
from meshwise.runtime.transports.tile_copier import process_of
from meshwise.simulate.timeline import Timeline
from meshwise.spmd.part import border_spec
from meshwise.trace.layers.layering import Layering
from meshwise.trace.step import abstract
from meshwise.trace.weak_types import with_weak_types


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineExecutable:
    """A compiled pipeline.

    Attributes:
        out_tree: Tree of the results.
        in_avals: Flat arguments.
        names: The names of the flat arguments.
        plan: What was decided.
        pipeline: What runs.
        ends: Takes stacks of layers apart and puts them together.
        in_shardings: Where each flat argument lives between steps; None for one that is not read.
        compile_s: Seconds that lowering and compilation took.
        donated: Positions of the state among the flat arguments.
        weak_results: Positions of flat results that are weakly typed.
        handover: What the last step returned.
        keeps_stacks: Whether stacks of the state stay until the step takes the state over; if not,
            for want of memory, they go when they are taken apart, and a failure before then puts
            them together again.
        every_process: Brings scalars to all processes of a job; None for this process alone.
        numbers: Count the steps.
    """

    out_tree: Any
    in_avals: tuple[jax.ShapeDtypeStruct, ...]
    names: tuple[str, ...]
    plan: Plan
    pipeline: Pipeline
    ends: StackedEnds
    in_shardings: tuple[NamedSharding | None, ...]
    compile_s: float
    donated: tuple[int, ...]
    weak_results: tuple[int, ...]
    handover: Handover
    keeps_stacks: bool
    every_process: EveryProcess | None
    numbers: Iterator[int]

    def rows_here(self, position: int, dim: int) -> tuple[Span, ...]:
        """Return the rows of a batch leaf that devices of this process take."""
        assert self.pipeline.layers.ends is not None
        numbers = self.pipeline.layers.ends.arguments[position].places
        return merged(span for n in numbers for span in self.pipeline.rows_here(n, dim))

    def ready(self, position: int, leaf: HostRows | np.ndarray[Any, Any]) -> Argument:
        """Return the leaf: its rows move to their stages micro-batch by micro-batch."""
        return leaf

    def place(self, leaves: Sequence[Argument]) -> Sequence[Argument]:
        """Return the arguments: they move to their stages when a step begins."""
        return leaves

    def run(self, leaves: Sequence[Argument]) -> list[Array]:
        """Run a step.

        Raises:
            StateLostError: an argument was donated to an earlier call, an earlier step failed after
                it had returned, or this one failed or was interrupted while it updated donated
                state.  What fails before leaves the arguments as they are.
            TypeError: arguments have other shapes or dtypes; nothing was done with them.
        """
        label = self._label()

        def run(flat: Sequence[Array], at_commit: Callable[[], None]) -> list[Array]:
            return self.pipeline.run(flat, at_commit, label)

        return self._run(leaves, run)

    def measured_run(self, leaves: Sequence[Argument]) -> tuple[list[Array], Timeline]:
        """Run a step with a clock beside it, which makes it slower; raises as `run` does.

        Returns:
            The results, and what each mesh did and when.
        """
        seen: list[Timeline] = []
        label = self._label()

        def run(flat: Sequence[Array], at_commit: Callable[[], None]) -> list[Array]:
            results, timeline = measured_step(self.pipeline, flat, at_commit, label)
            seen.append(timeline)
            return results

        return self._run(leaves, run), seen[0]

    def _label(self) -> str:
        """Return what tells this step from all others of the pipeline."""
        return f"step {next(self.numbers)}"

    def _run(
        self,
        given_leaves: Sequence[Argument],
        run: Callable[[Sequence[Array], Callable[[], None]], list[Array]],
    ) -> list[Array]:
        # What NumPy holds is copied to its device as arrays of other devices are.
        leaves = cast(Sequence[Array], given_leaves)
        check_alive(leaves, self.names)
        self._check_shapes(leaves)
        fresh = self.handover.fresh(leaves)
        given = without_repeats(leaves, self.donated)
        given = without_shared_memory(given, self.donated, fresh)
        try:
            results = with_weak_types(self._run_with_stacks(given, run), self.weak_results)
            if self.every_process is not None:
                results = self.every_process.readable(results, self.pipeline.copier)
        except BaseException as error:  # A failure of any kind, Ctrl-C too.
            self.pipeline.copier.abandon(error)
            lost = sum(isinstance(x, jax.Array) and x.is_deleted() for x in leaves)
            if lost:
                raise state_lost(lost, error) from error
            if self.pipeline.job is not None:
                error.add_note(SEE_OTHERS)
            if isinstance(error, jax.errors.JaxRuntimeError):
                if self.pipeline.transport is not None:
                    self.pipeline.transport.check()
                lost_before([leaves[i] for i in self.donated])
            raise
        self.handover.remember(results)
        return results

    def _run_with_stacks(
        self,
        given: Sequence[Array],
        run: Callable[[Sequence[Array], Callable[[], None]], list[Array]],
    ) -> list[Array]:
        flat, stacks = self.ends.arguments(given)
        if self.keeps_stacks:
            return self.ends.results(run(flat, lambda: _delete(stacks)))
        is_taken_over = False

        def take_over() -> None:
            nonlocal is_taken_over
            is_taken_over = True

        try:
            _delete(stacks)
            return self.ends.results(run(flat, take_over))
        except BaseException:
            # In a job the other processes go on, and do not help to put stacks together.
            if not is_taken_over and self.pipeline.transport is None and CAN_REFILL:
                self.ends.restore(given, flat)
            raise

    def _check_shapes(self, leaves: Sequence[Array]) -> None:
        """Rows are cut into micro-batches and stacks taken apart before any program sees them."""
        for leaf, aval, name in zip(leaves, self.in_avals, self.names, strict=True):
            if type(leaf) is jax.ShapeDtypeStruct:
                raise TypeError(f"argument {name} is a shape without an array")
            found = abstract(leaf, name)
            if (found.shape, found.dtype) != (aval.shape, aval.dtype):
                raise TypeError(
                    f"argument {name} is {found.dtype}{list(found.shape)}, the step was compiled "
                    f"for {aval.dtype}{list(aval.shape)}"
                )

    def measured_peak_bytes(self) -> int:
        """Memory of one device of the worst stage, as XLA reports it for the programs."""
        return max(stage_peaks(self.pipeline, self.plan))

    def traffic(self) -> dict[str, float]:
        """Bytes that pass from mesh to mesh in a step, each tensor counted once."""
        return {"bytes_between_meshes": float(bytes_between(self.pipeline))}

    def fidelity(self) -> tuple[StageFidelity, ...]:
        """For each stage what was predicted, and what was compiled."""
        return stage_fidelities(self.pipeline, self.plan)

    def compiled_text(self) -> dict[str, str]:
        """Optimised HLO of each program of this process, by name."""
        here = (p for p in self.pipeline.executables if p.executable is not None)
        return {p.name: p.text for p in here}


def compile_pipeline(
    layers: Layering,
    plan: Plan,
    decisions: Sequence[Sequence[GraphDecision]],
    job: Job | None = None,
) -> PipelineExecutable:
    """Lower and compile a planned pipeline.

    Args:
        layers: The layers of the step.
        plan: Its stages.
        decisions: For each stage those of its layers.
        job: The processes on whose devices it runs; None: those of this process.

    Raises:
        ClusterError: the plan needs more devices than there are, or the processes of the job have
            made different programs.
        TraceError: a value crosses a cut in a way that cannot be run yet.
        ProgramError: XLA:CPU would let collectives race, or buffers need more memory than a device
            of the plan's cluster has.
    """
    assert layers.ends is not None
    assert plan.cluster is not None  # a pipeline has been placed
    devices = devices_for(plan.cluster.num_devices, job)
    start = time.perf_counter()
    choices = [
        StageChoice(
            first_layer=stage.first_layer,
            last_layer=stage.last_layer,
            mesh=stage.mesh,
            devices=tuple(devices[stage.first_device :][: stage.num_devices]),
            remat=stage.remat,
            decisions=tuple(decided),
        )
        for stage, decided in zip(plan.stages, decisions, strict=True)
    ]
    schedule = plan.table()
    # Devices of one process are taken for one host, whatever the plan was made for.
    host_of = process_of if job is None else _hosts(plan.cluster, devices).__getitem__
    sending = _sending(plan, plan.cluster)
    pipeline = make_pipeline(layers, choices, schedule, job, sending, host_of)
    limits = {m: s.memory_bytes for m, s in zip(schedule.mesh_of_stage, plan.stages, strict=True)}
    sizes = pipeline.specs.bytes_on_device()
    verify_memory(pipeline.program, sizes, [limits[m] for m in range(schedule.num_meshes)])
    ends = StackedEnds(layers.ends, homes_of(pipeline), pipeline.copier)
    original = layers.ends.original
    donated = tuple(i for i, _ in original.aliases)
    return PipelineExecutable(
        out_tree=original.out_tree,
        in_avals=original.in_avals,
        names=original.names,
        plan=plan,
        pipeline=pipeline,
        ends=ends,
        in_shardings=ends.shardings,
        compile_s=time.perf_counter() - start,
        donated=donated,
        weak_results=original.weak_results,
        handover=Handover(
            original.aliases, [i for i in range(len(original.in_avals)) if i not in donated]
        ),
        keeps_stacks=has_room_for_stacks(pipeline, ends, plan, sizes),
        every_process=None if job is None else EveryProcess(),
        numbers=itertools.count(),
    )


def has_room_for_stacks(
    pipeline: Pipeline,
    ends: StackedEnds,
    plan: Plan,
    sizes: Sequence[Mapping[int, int]],
) -> bool:
    """Return whether stacks of the state fit beside their layers until the state is taken over.

    Args:
        pipeline: What runs.
        ends: Where stacks live.
        plan: Its stages, with what they need and have.
        sizes: For each mesh the bytes of each buffer on one device.
    """
    live = live_bytes(pipeline.program, sizes)[: pipeline.commit]
    predicted = plan.mesh_peak_bytes
    for m, stage in zip(plan.mesh_of_stage, plan.stages, strict=True):
        stacks = ends.state_bytes(frozenset(pipeline.meshes[m].devices.flat))
        peak = max([predicted[m], *(now[m] for now in live)])
        if stacks and stacks + peak > stage.memory_bytes:
            return False
    return True


def _delete(arrays: Sequence[Array]) -> None:
    for array in arrays:
        array.delete()


def homes_of(pipeline: Pipeline) -> tuple[NamedSharding | None, ...]:
    """Find where arguments live: state where it is updated, others where they are read first."""
    split = pipeline.layers.split
    found: list[NamedSharding | None] = [None] * len(split.in_avals)
    for mesh, program in zip(pipeline.meshes, pipeline.program.meshes, strict=True):
        for load in program.loads:
            if load.kind == "argument" and found[load.number] is None:
                found[load.number] = NamedSharding(mesh, border_spec(load.layout, mesh.axis_names))
    argument_of = {j: i for i, j in split.aliases}
    for layer in pipeline.compiled:
        shardings: Mapping[int, NamedSharding] = dict(enumerate(layer.parts.once[-1].out_shardings))
        for name, place in zip(
            layer.parts.once[-1].outputs, layer.parts.once[-1].places, strict=True
        ):
            if isinstance(name.value, StepResult) and name.value.number in argument_of:
                found[argument_of[name.value.number]] = shardings[place]
    return tuple(found)


def _sending(plan: Plan, cluster: ClusterSpec) -> Sending | None:
    """Return how tensors pass between hosts, with the rate of the slowest network card."""
    if not plan.transfers:
        return None
    hosts = [cluster.host_at(number) for number in range(cluster.num_hosts)]
    rate = min(host.nics_bytes_per_s for host in hosts)
    return Sending(strategy=plan.transfers, bytes_per_s=rate)


def _hosts(cluster: ClusterSpec, devices: Sequence[Device]) -> dict[Device, int]:
    """Return the host of each device of a cluster."""
    hosts = range(cluster.num_hosts)
    numbers = [host for host in hosts for _ in range(cluster.host_at(host).num_devices)]
    return dict(zip(devices, numbers, strict=False))
