"""Running a flat program, or a scan whose body is one, on concrete or traced values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax import lax

from meshwise.jax_compat import source_scope
from meshwise.rules.primitive import rebind
from meshwise.trace.program import Node, Program, ScanShape


def run_scan(
    shape: ScanShape, operands: Sequence[Any], body: Callable[[list[Any]], list[Any]]
) -> list[Any]:
    """A `scan` with another body: constants, carries, slices of xs in; carries, ys out.

    Args:
        shape: Structure of the scan.
        operands: Constants, carries, xs.
        body: One iteration, on flat values.

    Returns:
        Final carries and stacked ys.
    """
    first_xs = shape.num_consts + shape.num_carry
    consts = list(operands[: shape.num_consts])
    carry, xs = list(operands[shape.num_consts : first_xs]), list(operands[first_xs:])

    def step(carry: list[Any], xs: list[Any]) -> tuple[list[Any], list[Any]]:
        outs = body([*consts, *carry, *xs])
        return outs[: shape.num_carry], outs[shape.num_carry :]

    final, ys = lax.scan(step, carry, xs, length=shape.length, reverse=shape.reverse)
    return [*final, *ys]


def run_node(node: Node, operands: Sequence[Any]) -> list[Any]:
    """One equation on whole values."""
    with source_scope(node.source):
        if node.body is None:
            return rebind(node.equation, operands)
        body, shape = node.body, node.scan
        assert shape is not None
        return run_scan(shape, operands, lambda values: run_program(body, values))


def run_program(program: Program, args: Sequence[Any]) -> list[Any]:
    """A program on whole values."""
    values: dict[int, Any] = dict(program.constants)
    values.update(zip(program.inputs, args, strict=True))
    for node in program.nodes:
        results = run_node(node, [values[i] for i in node.inputs])
        values.update(zip(node.outputs, results, strict=True))
    return [values[i] for i in program.outputs]
