"""The backward pass of a layer on the tiles of one device: one program, or two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jax import Array

from meshwise.graph.layout import Layout
from meshwise.pieces.programs import PhaseProgram
from meshwise.pieces.split_backward import split_backward
from meshwise.program.names import Cotangent, Local, Name, is_sum
from meshwise.spmd.layer import DeviceProgram, LayerLowering, Readers, coming_cotangents


def backward(lowering: LayerLowering, readers: Readers) -> DeviceProgram:
    """Lower the backward pass of a micro-batch as one program.

    Args:
        lowering: The layer.
        readers: The layers that send cotangents of what left it.

    Returns:
        A program from cotangents of what left to those of what entered; sums grow.
    """
    program = lowering.layer.programs.backward
    return _program(lowering, program, _coming(lowering, readers))


def gradient_and_weights(
    lowering: LayerLowering, readers: Readers
) -> tuple[DeviceProgram, DeviceProgram | None]:
    """Lower the same as two programs: gradients of activations, then of weights.

    A cotangent that comes as it is wanted stays until both have run; one that is summed or moved is
    handed on.

    Args:
        lowering: The layer.
        readers: The layers that send cotangents of what left it.

    Returns:
        The programs; the second is None for a layer without gradients of weights.
    """
    split = split_backward(lowering.layer.programs)
    coming = _coming(lowering, readers)
    wanted = {v.number: v.layout for v in split.weights.inputs if v.role == "cotangent"}
    handed = [
        leaves
        for leaves, layout in wanted.items()
        if coming[leaves] and [n.layout for n in coming[leaves]] != [layout]
    ]
    gradient = _program(lowering, split.gradient, coming, handed)
    if not split.weights.outputs:
        return gradient, None
    late = {
        leaves: [Name(Local("total", leaves), layout)] if leaves in handed else coming[leaves]
        for leaves, layout in wanted.items()
    }
    return gradient, _program(lowering, split.weights, late, is_last=True)


def _coming(lowering: LayerLowering, readers: Readers) -> dict[int, list[Name]]:
    """Return the cotangents that come, for each activation that left."""
    return {
        leaves: coming_cotangents(lowering.layer.names.leaving[leaves], layout, readers)
        for leaves, layout in lowering.layer.cotangents_wanted().items()
    }


def _program(
    lowering: LayerLowering,
    program: PhaseProgram,
    coming: Mapping[int, Sequence[Name]],
    handed: Sequence[int] = (),
    *,
    is_last: bool = False,
) -> DeviceProgram:
    """Lower the backward pass or a part of it.

    Args:
        lowering: The layer.
        program: What runs.
        coming: For each activation that left the terms of its cotangent.
        handed: Activations that left whose cotangents are handed on.
        is_last: Whether cotangents of what entered were made before.
    """
    layer = lowering.layer
    wanted = layer.cotangents_wanted()
    passed = {} if is_last else layer.roles.passed
    back = {} if is_last else layer.cotangents_made()
    summed = {v.number for v in program.inputs if v.role == "cotangent"}
    summed = sorted({*summed, *passed.values(), *handed})
    others = [lowering.name(v) for v in program.inputs if v.role != "cotangent"]
    carried = {} if is_last else {a: Name(Cotangent(a), n) for a, n in lowering.carried.items()}
    terms = [n for leaves in summed for n in coming[leaves]]
    inputs = list(dict.fromkeys((*terms, *carried.values(), *others)))
    rest = [v for v in program.outputs if v.role != "inward"]

    def run(args: Sequence[Array]) -> list[Array]:
        known = dict(zip(inputs, args, strict=True))
        total = {
            leaves: _total(lowering, leaves, wanted[leaves], coming[leaves], known)
            for leaves in summed
        }
        given = [
            total[v.number] if v.role == "cotangent" else known[lowering.name(v)]
            for v in program.inputs
        ]
        made = dict(zip(program.outputs, lowering.run(program, given, body=True), strict=True))
        found = {layer.names.entering[v.number]: x for v, x in made.items() if v.role == "inward"}
        for enters, leaves in passed.items():
            v = layer.names.entering[enters]
            found[v] = lowering.moved(total[leaves], wanted[leaves], back[v])
        for v, name in carried.items():
            found[v] += lowering.moved(known[name], name.layout, back[v])
        return [
            *(found[v] for v in back),
            *(made[v] for v in rest),
            *(total[leaves] for leaves in handed),
        ]

    return DeviceProgram(
        inputs=tuple(inputs),
        outputs=(
            *(Name(Cotangent(v), layout) for v, layout in back.items()),
            *map(lowering.name, rest),
            *(Name(Local("total", leaves), wanted[leaves]) for leaves in handed),
        ),
        donated=tuple(n for n, name in enumerate(inputs) if is_sum(name.value)),
        run=run,
    )


def _total(
    lowering: LayerLowering,
    leaves: int,
    wanted: Layout,
    terms: Sequence[Name],
    known: Mapping[Name, Array],
) -> Array:
    """Add up the cotangents of an activation that left."""
    tensor = lowering.layer.cotangent(leaves)
    return lowering.total([(known[n], n.layout) for n in terms], wanted, tensor)
