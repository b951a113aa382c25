"""What one device of a stage holds, as a compiler reports it for the programs of its layers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from meshwise.inter.layer_cost.footprint import Footprint, handed_bytes
from meshwise.program.layer_parts import LayerParts
from meshwise.program.names import (
    Activation,
    CotangentTerm,
    Local,
    Name,
    Rows,
    StepArgument,
    StepValue,
)
from meshwise.runtime.pipeline.buffers import local_bytes
from meshwise.runtime.pipeline.compiled import CompiledProgram, LoweredProgram


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramBytes:
    """A program of a layer in bytes of one device.

    Attributes:
        inputs: What it takes.
        outputs: What it makes; several may be one result.
        places: For each output its place among the results.
        total: Arguments, results and temporaries, as the compiler reports them.
    """

    inputs: Mapping[Name, int]
    outputs: Mapping[Name, int]
    places: Mapping[Name, int]
    total: int


def program_bytes(program: CompiledProgram | LoweredProgram, total: int) -> ProgramBytes:
    """Return a program in bytes of one device.

    Args:
        program: The program.
        total: Bytes of one device while it runs, as the compiler reports them.
    """
    given = zip(program.inputs, program.in_shardings, program.in_avals, strict=True)
    made = zip(program.outputs, program.places, program.out_avals, strict=True)
    shardings = program.out_shardings
    return ProgramBytes(
        inputs={n: local_bytes(aval, sharding) for n, sharding, aval in given},
        outputs={n: local_bytes(aval, shardings[place]) for n, place, aval in made},
        places=dict(zip(program.outputs, program.places, strict=True)),
        total=total,
    )


def measured_footprint(layers: Iterable[LayerParts[ProgramBytes]]) -> Footprint:
    """Bytes of one device for the layers of one stage, in the parts that the planner predicts.

    What a compiler says of a program are its arguments, results and temporaries; which of them
    stay is known by their names.
    """
    found = [_of_layer(layer) for layer in layers]
    return Footprint(
        resident_bytes=sum(f.resident_bytes for f in found),
        microbatch_bytes=sum(f.microbatch_bytes for f in found),
        temporary_bytes=max(f.temporary_bytes for f in found),
        weight_bytes=sum(f.weight_bytes for f in found),
    )


def _of_layer(parts: LayerParts[ProgramBytes]) -> Footprint:
    resident = {
        n: b
        for p in parts.programs
        for n, b in p.inputs.items()
        if isinstance(n.value, StepArgument)
    }
    resident |= parts.before.outputs
    # What one program of the update has of another, all layers hold at once.
    handed, above = handed_bytes(
        [(_of_role(p.inputs, "sum"), _of_role(p.outputs, "border")) for p in parts.once]
    )
    border = {n: b for p in parts.once for n, b in _of_role(p.outputs, "border").items()}
    late = {} if parts.weights is None else parts.weights.inputs
    kept = {n: b for n, b in {**parts.backward.inputs, **late}.items() if _stays(n.value)}
    counted = {**resident, **kept}
    waits = {n: b for n, b in late.items() if _stays(n.value) or _waits(n.value)}
    extra = [_extra(p, counted) for p in (parts.before, parts.forward, parts.backward)]
    extra += [more + _extra(p, counted | border) for p, more in zip(parts.once, above, strict=True)]
    if parts.weights is not None:
        extra.append(_extra(parts.weights, counted | waits))
    return Footprint(
        resident_bytes=sum(resident.values()) + handed,
        microbatch_bytes=_distinct([parts.forward], kept),
        temporary_bytes=max(extra),
        weight_bytes=_distinct([parts.forward, parts.backward], waits),
    )


def _stays(value: StepValue) -> bool:
    """Return whether a value is held from the forward to the backward pass of a micro-batch."""
    is_kept = isinstance(value, Local) and value.role in ("kept", "entering")
    return is_kept or isinstance(value, Activation | Rows)


def _of_role(values: Mapping[Name, int], role: str) -> dict[Name, int]:
    """Return those values of a layer that have one role."""
    return {n: b for n, b in values.items() if isinstance(n.value, Local) and n.value.role == role}


def _waits(value: StepValue) -> bool:
    """Return whether a value is held until the gradients of weights are made."""
    is_late = isinstance(value, Local) and value.role in ("delayed", "total")
    return is_late or isinstance(value, CotangentTerm)


def _distinct(programs: Sequence[ProgramBytes], wanted: Mapping[Name, int]) -> int:
    """Bytes of values, those that are one result of a program counted once."""
    place: dict[Name, tuple[int, int] | Name] = {
        n: (k, at) for k, program in enumerate(programs) for n, at in program.places.items()
    }
    return sum({place.get(n, n): b for n, b in wanted.items()}.values())


def _extra(program: ProgramBytes, counted: Mapping[Name, int]) -> int:
    """Return what a program needs on top of what is there anyway."""
    there = {n: b for n, b in program.inputs.items() if n in counted}
    made = {n: b for n, b in program.outputs.items() if n in counted and n not in there}
    return program.total - sum(there.values()) - _distinct([program], made)
