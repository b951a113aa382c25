"""One compiled step on concrete devices: flat arrays in and out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from meshwise.jax_compat.jaxprs import Aval
from meshwise.plan.plan import Plan
from meshwise.runtime.compile import compile_decided
from meshwise.runtime.device_memory import device_peak_bytes
from meshwise.runtime.devices import Device, array_of, devices_for
from meshwise.runtime.donation import (
    Handover,
    check_alive,
    check_outcome,
    lost_before,
    state_lost,
    without_repeats,
    without_shared_memory,
)
from meshwise.runtime.fidelity import StageFidelity, bytes_of, compiled_bytes_of
from meshwise.runtime.host_rows import HostRows, Span, rows_on_devices
from meshwise.runtime.job.job import Job
from meshwise.runtime.placement import Argument, placed
from meshwise.runtime.scalars import EveryProcess
from meshwise.runtime.transports.choice import transport_of
from meshwise.runtime.transports.tile_copier import TileCopier
from meshwise.spmd.program import concrete_mesh, result_shardings, shardings
from meshwise.trace.step import TracedStep

# Said beside a failure in a job, which may come from another process.
SEE_OTHERS = "another process of the job may have failed or ended before; see what it printed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Executable:
    """A compiled step.

    Attributes:
        traced: The traced step.
        plan: The plan of the step.
        compiled: XLA executable on flat arguments; None where only other processes run it.
        results: Shape, dtype and sharding of each flat result.
        in_shardings: Sharding of each flat argument.
        compile_s: Seconds that lowering and compilation took.
        kept: Positions of the arguments that are not donated.
        handover: The results of the last run in place of what was donated to it.
        copier: Brings arrays of a job to the mesh; None where this process is alone.
        job: The processes that run it together; None where this process is alone.
        every_process: Brings scalars to processes that have no devices of the mesh; None where
            there is none.
    """

    traced: TracedStep
    plan: Plan
    compiled: jax.stages.Compiled | None
    results: tuple[jax.ShapeDtypeStruct, ...]
    in_shardings: tuple[NamedSharding, ...]
    compile_s: float
    kept: tuple[int, ...]
    handover: Handover
    copier: TileCopier | None = None
    job: Job | None = None
    every_process: EveryProcess | None = None

    @property
    def out_tree(self) -> Any:
        """The tree of the results."""
        return self.traced.out_tree

    def compiled_text(self) -> dict[str, str]:
        """Return the optimised HLO of each program, by name."""
        return {"step": self._text}

    def measured_peak_bytes(self) -> int:
        """Return the memory of one device as XLA reports it, in bytes; 0 where none is here."""
        return 0 if self.compiled is None else device_peak_bytes(self.compiled)

    def traffic(self) -> dict[str, float]:
        """Return nothing: there is one mesh."""
        return {}

    def fidelity(self) -> tuple[StageFidelity, ...]:
        """Return what was predicted, and what was compiled."""
        sizes = self.plan.mesh.sizes
        planned = bytes_of(self.plan.collectives)
        compiled = compiled_bytes_of(self._text, sizes)
        return (
            StageFidelity(
                predicted_peak_bytes=self.plan.peak_bytes,
                compiled_peak_bytes=self.measured_peak_bytes(),
                planned_bytes=dict(sorted(planned.items())),
                compiled_bytes=dict(sorted(compiled.items())),
            ),
        )

    def rows_here(self, position: int, dim: int) -> tuple[Span, ...]:
        """Return the rows of a batch leaf that devices of this process take."""
        shape = self.traced.in_avals[position].shape
        return rows_on_devices(self.in_shardings[position], shape, dim)

    def ready(self, position: int, leaf: HostRows | np.ndarray[Any, Any]) -> jax.Array:
        """Return a batch leaf in the sharding of the plan."""
        return placed([leaf], [self.in_shardings[position]])[0]

    def place(self, leaves: Sequence[Argument]) -> list[jax.Array]:
        """Return arguments in the shardings of the plan; those that are there already stay.

        Raises:
            StateLostError: an argument was donated to an earlier call.
            DataError: rows that devices of this process take are not in it.
        """
        check_alive(leaves, self._names(range(len(leaves))))
        given = without_repeats(leaves, self.traced.donated)
        if self.copier is None:
            return jax.device_put(list(given), list(self.in_shardings))
        try:
            return [self.copier.put(x, s) for x, s in zip(given, self.in_shardings, strict=True)]
        except BaseException as error:
            self.copier.abandon(error)
            raise

    def run(self, leaves: Sequence[Argument]) -> list[jax.Array]:
        """Run a step.

        Raises:
            StateLostError: an argument was donated to an earlier call, the step failed after it
                had taken over donated state, or an earlier one did after it had returned.
            ValueError: in a job, arguments have other shapes or dtypes, or do not lie where the
                step wants them: `place` moves them in all processes.
        """
        if self.copier is not None:
            leaves = self._with_host_leaves_placed(leaves)
            if not self._lie_there(leaves):
                raise ValueError("arguments lie elsewhere")
        check_outcome(leaves[i] for i in self.traced.donated)
        if self.handover.is_whole(leaves):
            check_alive([leaves[i] for i in self.kept], self._names(self.kept))
        else:
            check_alive(leaves, self._names(range(len(leaves))))
            donated = self.traced.donated
            leaves = without_repeats(leaves, donated)
            leaves = without_shared_memory(leaves, donated, self.handover.fresh(leaves))
        try:
            results = self.outputs(leaves)
        except BaseException as error:  # A failure of any kind, Ctrl-C too.
            if self.copier is not None:
                self.copier.abandon(error)
                error.add_note(SEE_OTHERS)
            donated = [leaves[position] for position in self.traced.donated]
            lost = sum(isinstance(x, jax.Array) and x.is_deleted() for x in donated)
            if lost:
                raise state_lost(lost, error) from error
            if isinstance(error, jax.errors.JaxRuntimeError):
                lost_before(donated)
            raise
        self.handover.remember(results)
        if self.job is not None and self.job.whereabouts is not None:
            self.job.whereabouts.dispatched("a step", results)
        if self.every_process is not None:
            assert self.copier is not None
            return self.every_process.readable(results, self.copier)
        return results

    def _with_host_leaves_placed(self, leaves: Sequence[Argument]) -> list[Argument]:
        """Return the arguments, those of the host on its devices; no other process takes part."""
        return [
            placed([leaf], [sharding])[0]
            if isinstance(leaf, (np.ndarray, HostRows))
            and (leaf.shape, leaf.dtype) == (aval.shape, aval.dtype)
            else leaf
            for leaf, aval, sharding in zip(
                leaves, self.traced.in_avals, self.in_shardings, strict=True
            )
        ]

    def _lie_there(self, leaves: Sequence[Argument]) -> bool:
        """Return whether the step takes all arguments as they lie; the same in all processes."""
        return all(
            isinstance(leaf, jax.Array)
            and (leaf.shape, leaf.dtype) == (aval.shape, aval.dtype)
            and leaf.sharding == sharding
            for leaf, aval, sharding in zip(
                leaves, self.traced.in_avals, self.in_shardings, strict=True
            )
        )

    def outputs(self, leaves: Sequence[Any]) -> list[jax.Array]:
        """Return what the program makes of arguments that lie where it wants them."""
        if self.compiled is None:
            return [array_of(spec, []) for spec in self.results]
        return self.compiled(*leaves)

    @property
    def _text(self) -> str:
        return "" if self.compiled is None else self.compiled.as_text() or ""

    def _names(self, positions: Sequence[int]) -> list[str]:
        (layer,) = self.plan.stages[0].layers
        arguments = layer.arguments
        return [arguments[position].name for position in positions]


def compile_step(
    traced: TracedStep,
    plan: Plan,
    devices: Sequence[Device] | None = None,
    job: Job | None = None,
    copier: TileCopier | None = None,
) -> Executable:
    """Lower and compile a planned step.

    Args:
        traced: The step.
        plan: The plan of the step.
        devices: At least as many devices as the plan's mesh has; by default those of the job, or
            of this process.
        job: The processes that run the step together; None: this process alone.
        copier: Brings arrays of the job to the mesh; None: one of its own.

    Raises:
        ClusterError: the plan needs more devices than there are.
        ProgramError: XLA:CPU would let collectives race.
    """
    count = plan.mesh.num_devices
    devices = devices_for(count, job) if devices is None else devices
    kept = tuple(i for i in range(len(traced.in_avals)) if i not in set(traced.donated))
    start = time.perf_counter()
    mesh = concrete_mesh(plan.mesh, devices[:count])
    compiled = compile_decided(traced, plan.decision, plan.mesh, mesh, job)
    if copier is None and job is not None:
        copier = TileCopier(transport_of(job))
    places = result_shardings(traced.graph, plan.decision, mesh)
    return Executable(
        traced=traced,
        plan=plan,
        compiled=compiled,
        results=tuple(
            jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place)
            for leaf, place in zip(_result_avals(traced), places, strict=True)
        ),
        in_shardings=tuple(shardings(plan.decision.inputs, mesh, plan.decision.in_host)),
        compile_s=time.perf_counter() - start,
        kept=kept,
        handover=Handover(traced.graph.aliases, kept),
        copier=copier,
        job=job,
        every_process=EveryProcess() if _leaves_out(mesh, job) else None,
    )


def _result_avals(traced: TracedStep) -> list[Aval]:
    """Return the global shape and dtype of each flat result."""
    return [traced.program.avals[i] for i in traced.program.outputs]


def _leaves_out(mesh: Mesh, job: Job | None) -> bool:
    """Return whether a process of a job has no devices of a mesh."""
    return job is not None and len({d.process_index for d in mesh.devices.flat}) < job.num_processes
