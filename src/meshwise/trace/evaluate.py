"""Running a flat program, or an operator whose bodies are such, on concrete or traced values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax

from meshwise.graph.structure import Structure
from meshwise.jax_compat.source_lines import source_scope
from meshwise.rules.primitive import rebind
from meshwise.trace.program import Node, Program

# One body on flat values: (number of the body, its inputs) -> its outputs.
RunBody = Callable[[int, list[Array]], list[Array]]


def run_structured(node: Node, operands: Sequence[Array], body: RunBody) -> list[Array]:
    """Return a `scan`, `cond` or `while` with other bodies.

    Args:
        node: The equation; its bodies are not looked at.
        operands: The operands of the equation.
        body: Runs one body; shapes may differ from those of the equation, types may not.

    Returns:
        Results of the equation.
    """
    structure = node.structure
    assert structure is not None
    types = [aval.dtype for aval in node.equation.out_avals]
    match structure.kind:
        case "scan":
            return _scan(structure, operands, body)
        case "cond":
            return _cond(structure, operands, body, types)
        case _:
            return _while(structure, operands, body, types)


def _taken(structure: Structure, part: int, operands: Sequence[Array]) -> list[Array]:
    return [operands[k] for k in structure.parts[part].operands]


def _with(operands: Sequence[Array], places: Sequence[int], values: Sequence[Array]) -> list[Array]:
    """Return the operands, others in some places."""
    now = list(operands)
    for k, value in zip(places, values, strict=True):
        now[k] = value
    return now


def _scan(structure: Structure, operands: Sequence[Array], body: RunBody) -> list[Array]:
    carried, carries = [k for k, _ in structure.carries], [j for _, j in structure.carries]
    stacked, ys = sorted(structure.stacked_operands), sorted(structure.stacked_results)
    results = structure.parts[0].results

    def step(carry: list[Array], slices: list[Array]) -> tuple[list[Array], list[Array]]:
        now = _with(operands, (*carried, *stacked), (*carry, *slices))
        made = dict(zip(results, body(0, _taken(structure, 0, now)), strict=True))
        return [made[j] for j in carries], [made[j] for j in ys]

    final, rows = lax.scan(
        step,
        [operands[k] for k in carried],
        [operands[k] for k in stacked],
        length=structure.length,
        reverse=structure.reverse,
    )
    made = dict(zip((*carries, *ys), (*final, *rows), strict=True))
    return [made[j] for j in range(len(made))]


def _cond(
    structure: Structure, operands: Sequence[Array], body: RunBody, types: Sequence[Array]
) -> list[Array]:
    def branch(part: int, *values: Array) -> list[Array]:
        made = body(part, _taken(structure, part, [operands[0], *values]))
        return list(map(_typed, made, types))

    branches = [partial(branch, part) for part in range(len(structure.parts))]
    return list(lax.switch(operands[0], branches, *operands[1:]))


def _while(
    structure: Structure, operands: Sequence[Array], body: RunBody, types: Sequence[Array]
) -> list[Array]:
    carried = [k for k, _ in structure.carries]

    def run(part: int, carry: list[Array]) -> list[Array]:
        return body(part, _taken(structure, part, _with(operands, carried, carry)))

    start = [_typed(operands[k], dtype) for k, dtype in zip(carried, types, strict=True)]
    final = lax.while_loop(
        lambda carry: run(0, carry)[0],
        lambda carry: list(map(_typed, run(1, carry), types)),
        start,
    )
    return list(final)


def _typed(value: Array, dtype: Array) -> Array:
    """Return an array of a strong type: branches and iterations must agree on types."""
    if jnp.issubdtype(dtype, jax.dtypes.extended):
        return value
    return lax.convert_element_type(value, dtype)


def run_node(node: Node, operands: Sequence[Array]) -> list[Array]:
    """One equation on whole values."""
    with source_scope(node.source):
        if not node.bodies:
            return rebind(node.equation, operands)
        bodies = node.bodies
        return run_structured(
            node, operands, lambda part, values: run_program(bodies[part], values)
        )


def run_program(program: Program, args: Sequence[Array]) -> list[Array]:
    """Return a program on whole values."""
    values: dict[int, Array] = dict(program.constants)
    values.update(zip(program.inputs, args, strict=True))
    for node in program.nodes:
        results = run_node(node, [values[i] for i in node.inputs])
        values.update(zip(node.outputs, results, strict=True))
    return [values[i] for i in program.outputs]
