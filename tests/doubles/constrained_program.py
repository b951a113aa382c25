"""The second lowering: whole tensors with sharding constraints, for XLA's partitioner.

It asks for the same layouts as the plan and leaves the collectives to XLA.  It is the oracle of
the explicit lowering in tests and its rival in benchmarks; a partial layout has no constraint,
so XLA chooses when to reduce.

Source: docs/decisions/0005.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import NamedSharding

from meshwise.cluster.mesh import LogicalMesh
from meshwise.graph.layout import Layout, without_partial
from meshwise.jax_compat.source_lines import source_scope
from meshwise.plan.decision import GraphDecision
from meshwise.rules.primitive import rebind
from meshwise.spmd.program import abstract_mesh, partition_spec
from meshwise.trace.evaluate import run_structured
from meshwise.trace.program import Node, Program


def _constrained(value: Array, layout: Layout, mesh: LogicalMesh) -> Array:
    if layout.partial:
        return value
    abstract = abstract_mesh(mesh)
    spec = partition_spec(without_partial(layout), mesh.names)
    return lax.with_sharding_constraint(value, NamedSharding(abstract, spec))


def run_constrained(
    program: Program, decision: GraphDecision, mesh: LogicalMesh, args: Sequence[Array]
) -> list[Array]:
    """The program on whole arrays, each value constrained to the layout of its definition.

    Args:
        program: The equations.
        decision: What the planner decided.
        mesh: The mesh.
        args: Whole arguments.

    Returns:
        Whole results, in the layouts of the plan.
    """
    values: dict[int, Array] = dict(program.constants)
    for ident, layout, value in zip(program.inputs, decision.inputs, args, strict=True):
        values[ident] = _constrained(value, layout, mesh)
    for node, chosen in zip(program.nodes, decision.operators, strict=True):
        with source_scope(node.source):
            operands = [
                values[i] if i in program.constants else _constrained(values[i], use.layout, mesh)
                for i, use in zip(node.inputs, chosen.uses, strict=True)
            ]
            if not node.bodies:
                results = rebind(node.equation, operands)
            else:
                results = _run_bodies(node, chosen.bodies, mesh, operands)
            for ident, layout, value in zip(node.outputs, chosen.results, results, strict=True):
                values[ident] = _constrained(value, layout, mesh)
    return [
        _constrained(jnp.asarray(values[i]), use.layout, mesh)
        for i, use in zip(program.outputs, decision.outputs, strict=True)
    ]


def _run_bodies(
    node: Node, decisions: Sequence[GraphDecision], mesh: LogicalMesh, operands: list[Array]
) -> list[Array]:
    def body(part: int, values: list[Array]) -> list[Array]:
        return run_constrained(node.bodies[part], decisions[part], mesh, values)

    return run_structured(node, operands, body)
