"""What one device of a stage holds, as XLA reports it for the compiled programs of its layers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from meshwise.inter.layer_cost.footprint import Footprint
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
from meshwise.runtime.pipeline.build import CompiledLayer
from meshwise.runtime.pipeline.compiled import CompiledProgram


def measured_footprint(layers: Iterable[CompiledLayer]) -> Footprint:
    """Bytes of one device for the layers of one stage, in the parts that the planner predicts.

    What XLA says of a program are its arguments, results and temporaries; which of them stay is
    known by their names.
    """
    found = [_of_layer(layer) for layer in layers]
    return Footprint(
        resident_bytes=sum(f.resident_bytes for f in found),
        microbatch_bytes=sum(f.microbatch_bytes for f in found),
        temporary_bytes=max(f.temporary_bytes for f in found),
        weight_bytes=sum(f.weight_bytes for f in found),
    )


def _of_layer(layer: CompiledLayer) -> Footprint:
    parts = layer.parts
    resident = {
        n: b
        for p in parts.programs
        for n, b in _inputs(p).items()
        if isinstance(n.value, StepArgument)
    }
    resident |= _outputs(parts.before)
    late = {} if parts.weights is None else _inputs(parts.weights)
    kept = {n: b for n, b in {**_inputs(parts.backward), **late}.items() if _stays(n.value)}
    counted = {**resident, **kept}
    waits = {n: b for n, b in late.items() if _stays(n.value) or _waits(n.value)}
    extra = [_extra(p, counted) for p in parts.programs if p is not parts.weights]
    if parts.weights is not None:
        extra.append(_extra(parts.weights, counted | waits))
    return Footprint(
        resident_bytes=sum(resident.values()),
        microbatch_bytes=_distinct([parts.forward], kept),
        temporary_bytes=max(extra),
        weight_bytes=_distinct([parts.forward, parts.backward], waits),
    )


def _stays(value: StepValue) -> bool:
    """Return whether a value is held from the forward to the backward pass of a micro-batch."""
    is_kept = isinstance(value, Local) and value.role in ("kept", "entering")
    return is_kept or isinstance(value, Activation | Rows)


def _waits(value: StepValue) -> bool:
    """Return whether a value is held until the gradients of weights are made."""
    is_late = isinstance(value, Local) and value.role in ("delayed", "total")
    return is_late or isinstance(value, CotangentTerm)


def _inputs(program: CompiledProgram) -> dict[Name, int]:
    found = zip(program.inputs, program.in_shardings, program.in_avals, strict=True)
    return {n: local_bytes(aval, sharding) for n, sharding, aval in found}


def _outputs(program: CompiledProgram) -> dict[Name, int]:
    shardings = program.run.output_shardings
    return {
        n: local_bytes(aval, shardings[place])
        for n, place, aval in zip(program.outputs, program.places, program.out_avals, strict=True)
    }


def _distinct(programs: Sequence[CompiledProgram], wanted: dict[Name, int]) -> int:
    """Bytes of values, those that are one result of a program counted once."""
    place: dict[Name, tuple[int, int] | Name] = {
        n: (k, at)
        for k, program in enumerate(programs)
        for n, at in zip(program.outputs, program.places, strict=True)
    }
    return sum({place.get(n, n): b for n, b in wanted.items()}.values())


def _extra(program: CompiledProgram, counted: dict[Name, int]) -> int:
    """Return what a program needs on top of what is there anyway."""
    found = program.run.memory_analysis()
    assert found is not None
    total = (
        found.argument_size_in_bytes
        + found.output_size_in_bytes
        + found.temp_size_in_bytes
        - found.alias_size_in_bytes
    )
    there = {n: b for n, b in _inputs(program).items() if n in counted}
    made = {n: b for n, b in _outputs(program).items() if n in counted and n not in there}
    return int(total) - sum(there.values()) - _distinct([program], made)
