"""What a target's compiler says of a plan, beside what was planned."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from meshwise.plan.decision import GraphDecision
from meshwise.plan.plan import Plan
from meshwise.plan.text.columns import WIDTH, table
from meshwise.program.layer_parts import PASSES, LayerParts
from meshwise.runtime.device_memory import CompiledBytes
from meshwise.runtime.pipeline.fidelity import peaks_of_stages
from meshwise.runtime.pipeline.memory import ProgramBytes, program_bytes
from meshwise.targets.catalog import compile_target
from meshwise.targets.child import CompileAnswer
from meshwise.targets.compile_target import CompileTarget
from meshwise.targets.compiler import Listener, TargetProgram, compile_programs
from meshwise.targets.lowered import pipeline_programs, step_program
from meshwise.targets.packages import installed_compiler
from meshwise.targets.reserve import reserves, usable_bytes
from meshwise.targets.verified_collectives import (
    ProgramRuns,
    VerifiedCollectives,
    collectives_text,
    verified_collectives,
)
from meshwise.trace.layers.layering import Layering
from meshwise.trace.step import TracedStep
from meshwise.units import bytes_text, seconds_text


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedProgram:
    """A compiled program.

    Attributes:
        name: Name of the program.
        count: How often it runs in a step.
        memory: Bytes of one device.
        compile_s: Seconds of compilation, when it was compiled.
        is_too_large: Whether the compiler said only how much memory it needs, which is more than a
            device has.  Nothing is known of its collectives then.
    """

    name: str
    count: int
    memory: CompiledBytes
    compile_s: float
    is_too_large: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedStage:
    """Memory of one device of a stage, in bytes.

    Attributes:
        stage: Number of the stage.
        predicted_bytes: The peak that the plan says.
        compiled_bytes: The peak that the compiler says.
        limit_bytes: What a device of the stage may hold: the memory that it was planned for, and at
            most that of the target less the reserve.
    """

    stage: int
    predicted_bytes: int
    compiled_bytes: int
    limit_bytes: int

    @property
    def fits(self) -> bool:
        """Whether the compiled programs fit."""
        return self.compiled_bytes <= self.limit_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """A plan as its target's compiler sees it.

    Attributes:
        target: Name of the target.
        compiler: Name and version of the compiler.
        memory_bytes: Memory of one device.
        reserves: What is kept back of it: names and bytes.
        usable_bytes: What programs may hold; on GPUs JAX gives them that much only with
            `XLA_PYTHON_CLIENT_MEM_FRACTION` at this share of the memory (0.75 by default).
        stages: Memory of each stage.
        programs: The programs that were compiled, equal ones once.
        collectives: By kind and axes.
    """

    target: str
    compiler: str
    memory_bytes: int
    reserves: Mapping[str, int]
    usable_bytes: int
    stages: tuple[VerifiedStage, ...]
    programs: tuple[VerifiedProgram, ...]
    collectives: tuple[VerifiedCollectives, ...]

    @property
    def fits(self) -> bool:
        """Whether the compiled programs of every stage fit into its devices."""
        return all(stage.fits for stage in self.stages)

    @property
    def predicted_bytes(self) -> int:
        """The peak of the worst device, as the plan says."""
        return max(stage.predicted_bytes for stage in self.stages)

    @property
    def compiled_bytes(self) -> int:
        """The peak of the worst device, as the compiler says."""
        return max(stage.compiled_bytes for stage in self.stages)

    def explain(self) -> str:
        """Return the verification as a text."""
        return "\n".join(_lines(self)) + "\n"

    def __str__(self) -> str:
        """Return the text of `explain`."""
        return self.explain()

    def to_json(self) -> str:
        """Return the verification as JSON text."""
        return json.dumps(asdict(self) | {"fits": self.fits}, indent=1, sort_keys=True) + "\n"


def verify_step(
    traced: TracedStep, plan: Plan, target: CompileTarget, listener: Listener | None = None
) -> Verification:
    """Compile the step of a plan on one mesh for a target.

    Args:
        traced: The step.
        plan: Its plan.
        target: The kind of device.
        listener: Is told of each program that is compiled.

    Raises:
        ClusterError: the compiler is not installed.
        ProgramError: JAX does not lower the program, or the compiler refuses it.
    """
    program = step_program(traced, plan, target.platform)
    (answer,) = compile_programs(target, [program], listener=listener)
    run = _Run(stage=0, program=program, answer=answer, count=1)
    return _verification(plan, target, [run], [answer.memory.peak_bytes])


def verify_pipeline(
    layers: Layering,
    plan: Plan,
    decisions: Sequence[Sequence[GraphDecision]],
    target: CompileTarget,
    listener: Listener | None = None,
) -> Verification:
    """Compile the programs of all layers of a pipeline for a target, equal ones once.

    Programs that join layers, as a global norm, are small and are left out.

    Args:
        layers: The layers of the step.
        plan: Its stages.
        decisions: For each stage those of its layers.
        target: The kind of devices, on all stages.
        listener: Is told of each program that is compiled.

    Raises:
        ClusterError: the compiler is not installed.
        ProgramError: JAX does not lower a program, or the compiler refuses it.
    """
    # Before minutes of lowering.
    installed_compiler(target.platform)
    made = list(pipeline_programs(layers, plan, decisions, target.platform))
    programs = [program for layer in made for program, _ in layer.parts.programs]
    answers = iter(compile_programs(target, programs, listener=listener))
    runs: list[_Run] = []
    sizes: list[tuple[int, LayerParts[ProgramBytes]]] = []
    for layer in made:
        found = layer.parts.map(lambda _, part: (part, next(answers)))
        for name, ((program, lowered), answer) in found.named():
            if not lowered.outputs:
                continue  # It never runs.
            each = plan.num_microbatches if name in PASSES else 1
            runs.append(_Run(stage=layer.stage, program=program, answer=answer, count=each))
        in_bytes = found.map(lambda _, part: program_bytes(part[0][1], part[1].memory.peak_bytes))
        sizes.append((layer.stage, in_bytes))
    return _verification(plan, target, runs, peaks_of_stages(plan, sizes))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """A program of a stage, what the compiler says of it, and how often it runs in a step."""

    stage: int
    program: TargetProgram
    answer: CompileAnswer
    count: int


def _verification(
    plan: Plan, target: CompileTarget, runs: Sequence[_Run], compiled_bytes: Sequence[int]
) -> Verification:
    predicted = [plan.mesh_peak_bytes[m] for m in plan.mesh_of_stage]
    return Verification(
        target=target.name,
        compiler=installed_compiler(target.platform).name,
        memory_bytes=target.memory_bytes,
        reserves=reserves(target),
        usable_bytes=usable_bytes(target),
        stages=tuple(
            VerifiedStage(
                stage=s,
                predicted_bytes=predicted[s],
                compiled_bytes=found,
                limit_bytes=min(plan.stages[s].memory_bytes, usable_bytes(target)),
            )
            for s, found in enumerate(compiled_bytes)
        ),
        programs=_programs(runs),
        collectives=_collectives(plan, runs, target),
    )


def _programs(runs: Sequence[_Run]) -> tuple[VerifiedProgram, ...]:
    """Each different program once, under the name of the first."""
    equal: dict[str, list[_Run]] = {}
    for run in runs:
        equal.setdefault(run.program.digest, []).append(run)
    return tuple(
        VerifiedProgram(
            name=same[0].program.name,
            count=sum(run.count for run in same),
            memory=same[0].answer.memory,
            compile_s=same[0].answer.seconds,
            is_too_large=same[0].answer.is_too_large,
        )
        for same in equal.values()
    )


def _collectives(
    plan: Plan, runs: Sequence[_Run], target: CompileTarget
) -> tuple[VerifiedCollectives, ...]:
    programs = (
        ProgramRuns(mesh=plan.stages[run.stage].mesh, text=run.answer.text, num_runs=run.count)
        for run in runs
        if not run.answer.is_too_large
    )
    return verified_collectives(plan, programs, target.cycles_per_s)


def _lines(found: Verification) -> list[str]:
    state = "fits" if found.fits else "does not fit"
    fullest = max(found.stages, key=lambda stage: stage.compiled_bytes / stage.limit_bytes)
    kept_back = ", ".join(f"{name} {bytes_text(n)}" for name, n in found.reserves.items())
    return [
        f"{found.target}, compiled by {found.compiler}: {state}. The fullest device needs "
        f"{bytes_text(fullest.compiled_bytes)} of {bytes_text(fullest.limit_bytes)}.",
        *textwrap.wrap(
            f"Usable: {bytes_text(found.usable_bytes)} of {bytes_text(found.memory_bytes)}. Kept "
            f"back: {kept_back}.{_pool(found)}",
            WIDTH,
        ),
        "",
        *_stage_table(found.stages),
        "",
        *_program_table(found.programs),
        *_refused(found.programs),
        *(["", *collectives_text(found.collectives)] if found.collectives else []),
    ]


def _pool(found: Verification) -> str:
    """What makes JAX's pool as large as what is usable; TPUs have no such setting."""
    if compile_target(found.target).platform != "cuda":
        return ""
    # In ten-thousandths, rounded up: the pool has all that is usable.
    share = -(-found.usable_bytes * 10_000 // found.memory_bytes)
    return f" Set XLA_PYTHON_CLIENT_MEM_FRACTION={share / 10_000:.4f}."


def _stage_table(stages: Sequence[VerifiedStage]) -> list[str]:
    rows = [
        (
            str(stage.stage),
            bytes_text(stage.predicted_bytes),
            bytes_text(stage.compiled_bytes),
            bytes_text(stage.limit_bytes),
            f"{stage.predicted_bytes / max(stage.compiled_bytes, 1):.3f}",
        )
        for stage in stages
    ]
    return table(("stage", "predicted", "compiled", "limit", "predicted / compiled"), rows, "lrrrr")


def _program_table(programs: Sequence[VerifiedProgram]) -> list[str]:
    head = ("program", "runs", "arguments", "results", "in place", "temporary", "compiled in")
    rows = [
        (
            program.name,
            str(program.count),
            bytes_text(program.memory.argument_bytes),
            bytes_text(program.memory.output_bytes),
            bytes_text(program.memory.alias_bytes),
            bytes_text(program.memory.temporary_bytes),
            seconds_text(program.compile_s),
        )
        for program in programs
    ]
    return table(head, rows, "lrrrrrr")


def _refused(programs: Sequence[VerifiedProgram]) -> list[str]:
    names = [program.name for program in programs if program.is_too_large]
    if not names:
        return []
    text = (
        f"The compiler refused {', '.join(names)}: it says how much memory such a program needs in "
        "all, and nothing of its collectives."
    )
    return ["", *textwrap.wrap(text, WIDTH)]
