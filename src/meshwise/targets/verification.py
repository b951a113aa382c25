"""What the compilers of a plan's devices say of it, beside what was planned."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
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
from meshwise.targets.lowered import TargetLayer, pipeline_programs, step_program
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
        target: Name of the kind of devices that it was compiled for.
        count: How often it runs in a step.
        memory: Bytes of one device.
        compile_s: Seconds of compilation, when it was compiled.
        is_too_large: Whether the compiler said only how much memory it needs, which is more than a
            device has.  Nothing is known of its collectives then.
    """

    name: str
    target: str
    count: int
    memory: CompiledBytes
    compile_s: float
    is_too_large: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedStage:
    """Memory of one device of a stage, in bytes.

    Attributes:
        stage: Number of the stage.
        target: Name of the kind of its devices.
        predicted_bytes: The peak that the plan says.
        compiled_bytes: The peak that the compiler says.
        limit_bytes: What a device of the stage may hold: the memory that it was planned for, and at
            most that of the target less the reserve.
    """

    stage: int
    target: str
    predicted_bytes: int
    compiled_bytes: int
    limit_bytes: int

    @property
    def fits(self) -> bool:
        """Whether the compiled programs fit."""
        return self.compiled_bytes <= self.limit_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedTarget:
    """A kind of device for which programs were compiled.

    Attributes:
        name: Name of the target.
        compiler: Name and version of the compiler.
        memory_bytes: Memory of one device.
        reserves: What is kept back of it: names and bytes.
        usable_bytes: What programs may hold; on GPUs JAX gives them that much only with
            `XLA_PYTHON_CLIENT_MEM_FRACTION` at this share of the memory (0.75 by default).
    """

    name: str
    compiler: str
    memory_bytes: int
    reserves: Mapping[str, int]
    usable_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """A plan as the compilers of its targets see it.

    Attributes:
        targets: The kinds of devices of the stages, each once.
        stages: Memory of each stage.
        programs: The programs that were compiled, equal ones once.
        collectives: By kind and axes.
    """

    targets: tuple[VerifiedTarget, ...]
    stages: tuple[VerifiedStage, ...]
    programs: tuple[VerifiedProgram, ...]
    collectives: tuple[VerifiedCollectives, ...]

    @property
    def fits(self) -> bool:
        """Whether the compiled programs of every stage fit into its devices."""
        return all(stage.fits for stage in self.stages)

    @property
    def target(self) -> str:
        """Names of the targets."""
        return ", ".join(target.name for target in self.targets)

    @property
    def compiler(self) -> str:
        """Names and versions of the compilers."""
        return ", ".join(dict.fromkeys(target.compiler for target in self.targets))

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
    return _verification(plan, [target], [run], [answer.memory.peak_bytes])


def verify_pipeline(
    layers: Layering,
    plan: Plan,
    decisions: Sequence[Sequence[GraphDecision]],
    targets: Sequence[CompileTarget],
    listener: Listener | None = None,
) -> Verification:
    """Compile the programs of all layers of a pipeline, equal ones once.

    Programs that join layers, as a global norm, are small and are left out.

    Args:
        layers: The layers of the step.
        plan: Its stages.
        decisions: For each stage those of its layers.
        targets: The kind of devices of each stage.
        listener: Is told of each program that is compiled.

    Raises:
        ClusterError: the compiler is not installed.
        ProgramError: JAX does not lower a program, or the compiler refuses it.
    """
    for target in targets:
        installed_compiler(target.platform)  # Before minutes of lowering.
    made = list(pipeline_programs(layers, plan, decisions, [t.platform for t in targets]))
    answers = _answers(made, targets, listener)
    runs: list[_Run] = []
    sizes: list[tuple[int, LayerParts[ProgramBytes]]] = []
    for layer in made:
        answers_here = answers[targets[layer.stage].name]
        found = layer.parts.map(lambda _, part, here=answers_here: (part, next(here)))
        for name, ((program, lowered), answer) in found.named():
            if not lowered.outputs:
                continue  # It never runs.
            each = plan.num_microbatches if name in PASSES else 1
            runs.append(_Run(stage=layer.stage, program=program, answer=answer, count=each))
        in_bytes = found.map(lambda _, part: program_bytes(part[0][1], part[1].memory.peak_bytes))
        sizes.append((layer.stage, in_bytes))
    return _verification(plan, targets, runs, peaks_of_stages(plan, sizes))


def _answers(
    layers: Sequence[TargetLayer], targets: Sequence[CompileTarget], listener: Listener | None
) -> dict[str, Iterator[CompileAnswer]]:
    """Answers for each target, in the order of the layers and their programs."""
    found: dict[str, Iterator[CompileAnswer]] = {}
    for name, target in {target.name: target for target in targets}.items():
        programs = [
            program
            for layer in layers
            if targets[layer.stage].name == name
            for program, _ in layer.parts.programs
        ]
        found[name] = iter(compile_programs(target, programs, listener=listener))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """A program of a stage, what the compiler says of it, and how often it runs in a step."""

    stage: int
    program: TargetProgram
    answer: CompileAnswer
    count: int


def _verification(
    plan: Plan,
    targets: Sequence[CompileTarget],
    runs: Sequence[_Run],
    compiled_bytes: Sequence[int],
) -> Verification:
    predicted = [plan.mesh_peak_bytes[m] for m in plan.mesh_of_stage]
    kinds = {target.name: target for target in targets}
    return Verification(
        targets=tuple(_verified_target(target) for target in kinds.values()),
        stages=tuple(
            VerifiedStage(
                stage=s,
                target=targets[s].name,
                predicted_bytes=predicted[s],
                compiled_bytes=found,
                limit_bytes=min(plan.stages[s].memory_bytes, usable_bytes(targets[s])),
            )
            for s, found in enumerate(compiled_bytes)
        ),
        programs=_programs(runs, targets),
        collectives=_collectives(plan, runs, targets),
    )


def _verified_target(target: CompileTarget) -> VerifiedTarget:
    return VerifiedTarget(
        name=target.name,
        compiler=installed_compiler(target.platform).name,
        memory_bytes=target.memory_bytes,
        reserves=reserves(target),
        usable_bytes=usable_bytes(target),
    )


def _programs(
    runs: Sequence[_Run], targets: Sequence[CompileTarget]
) -> tuple[VerifiedProgram, ...]:
    """Each different program once for each target, under the name of the first."""
    equal: dict[tuple[str, str], list[_Run]] = {}
    for run in runs:
        equal.setdefault((targets[run.stage].name, run.program.digest), []).append(run)
    return tuple(
        VerifiedProgram(
            name=same[0].program.name,
            target=target,
            count=sum(run.count for run in same),
            memory=same[0].answer.memory,
            compile_s=same[0].answer.seconds,
            is_too_large=same[0].answer.is_too_large,
        )
        for (target, _), same in equal.items()
    )


def _collectives(
    plan: Plan, runs: Sequence[_Run], targets: Sequence[CompileTarget]
) -> tuple[VerifiedCollectives, ...]:
    programs = (
        ProgramRuns(
            mesh=plan.stages[run.stage].mesh,
            text=run.answer.text,
            num_runs=run.count,
            cycles_per_s=targets[run.stage].cycles_per_s,
        )
        for run in runs
        if not run.answer.is_too_large
    )
    return verified_collectives(plan, programs)


def _lines(found: Verification) -> list[str]:
    state = "fits" if found.fits else "does not fit"
    fullest = max(found.stages, key=lambda stage: stage.compiled_bytes / stage.limit_bytes)
    return [
        f"{found.target}, compiled by {found.compiler}: {state}. The fullest device needs "
        f"{bytes_text(fullest.compiled_bytes)} of {bytes_text(fullest.limit_bytes)}.",
        *(line for target in found.targets for line in _usable(target)),
        "",
        *_stage_table(found.stages),
        "",
        *_program_table(found.programs),
        *_refused(found.programs),
        *(["", *collectives_text(found.collectives)] if found.collectives else []),
    ]


def _usable(target: VerifiedTarget) -> list[str]:
    kept_back = ", ".join(f"{name} {bytes_text(n)}" for name, n in target.reserves.items())
    text = (
        f"Usable on {target.name}: {bytes_text(target.usable_bytes)} of "
        f"{bytes_text(target.memory_bytes)}. Kept back: {kept_back}.{_pool(target)}"
    )
    return textwrap.wrap(text, WIDTH)


def _pool(target: VerifiedTarget) -> str:
    """What makes JAX's pool as large as what is usable; TPUs have no such setting."""
    if compile_target(target.name).platform != "cuda":
        return ""
    # In ten-thousandths, rounded up: the pool has all that is usable.
    share = -(-target.usable_bytes * 10_000 // target.memory_bytes)
    return f" Set XLA_PYTHON_CLIENT_MEM_FRACTION={share / 10_000:.4f}."


def _stage_table(stages: Sequence[VerifiedStage]) -> list[str]:
    rows = [
        (
            str(stage.stage),
            stage.target,
            bytes_text(stage.predicted_bytes),
            bytes_text(stage.compiled_bytes),
            bytes_text(stage.limit_bytes),
            f"{stage.predicted_bytes / max(stage.compiled_bytes, 1):.3f}",
        )
        for stage in stages
    ]
    # A step on one mesh is a plan of one stage.
    where = "stage" if len(stages) > 1 else "mesh"
    head = (where, "target", "predicted", "compiled", "limit", "predicted / compiled")
    return table(head, rows, "llrrrr")


def _program_table(programs: Sequence[VerifiedProgram]) -> list[str]:
    head = (
        "program",
        "target",
        "runs",
        "arguments",
        "results",
        "in place",
        "temporary",
        "compiled in",
    )
    rows = [
        (
            program.name,
            program.target,
            str(program.count),
            bytes_text(program.memory.argument_bytes),
            bytes_text(program.memory.output_bytes),
            bytes_text(program.memory.alias_bytes),
            bytes_text(program.memory.temporary_bytes),
            seconds_text(program.compile_s),
        )
        for program in programs
    ]
    return table(head, rows, "llrrrrrr")


def _refused(programs: Sequence[VerifiedProgram]) -> list[str]:
    names = [program.name for program in programs if program.is_too_large]
    if not names:
        return []
    text = (
        f"The compiler refused {', '.join(names)}: it says how much memory such a program needs in "
        "all, and nothing of its collectives."
    )
    return ["", *textwrap.wrap(text, WIDTH)]
