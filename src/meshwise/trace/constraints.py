"""Layouts that a step asks for: `with_sharding_constraint`, `reshard`, an inner `jax.jit`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jax.sharding import NamedSharding, PartitionSpec

from meshwise.jax_compat.jaxprs import FlatJaxpr, bodies
from meshwise.jax_compat.source_lines import SourceInfo, source_line
from meshwise.rules.identity import constraint_p
from meshwise.trace.program import Program


@dataclass(frozen=True, slots=True)
class Constraint:
    """A layout that a step asks for.

    Attributes:
        where: The user's line.
        sizes: Sizes of the axes of the user's mesh by name; of no mesh for another sharding.
        dims: For each dim the axes that split it, None for a dim that is left free; dims behind
            the end are not split.
    """

    where: str
    sizes: Mapping[str, int]
    dims: tuple[tuple[str, ...] | None, ...]


# What an inner `jax.jit` asks.
_ASKED = ("in_shardings", "out_shardings")


def _constraint(sharding: Any, source: SourceInfo | None) -> Constraint:
    where = source_line(source)
    if not isinstance(sharding, NamedSharding):
        return Constraint(where, {}, ())
    free = PartitionSpec.UNCONSTRAINED
    dims = (
        None if e is free else () if e is None else (e,) if isinstance(e, str) else tuple(e)
        for e in sharding.spec
    )
    return Constraint(where, dict(sharding.mesh.shape), tuple(dims))


def constraints_of(
    program: Program, path: tuple[int, ...] = ()
) -> Iterator[tuple[tuple[int, ...], Constraint]]:
    """Yield the constraints of a program, those in bodies too.

    Args:
        program: The program.
        path: Where it stands in another one.

    Returns:
        Pairs (path of the operator in the graph of the program, constraint).
    """
    for i, node in enumerate(program.nodes):
        if node.name == constraint_p.name:
            yield (*path, i), _constraint(node.equation.params["sharding"], node.source)
        for p, body in enumerate(node.bodies):
            yield from constraints_of(body, (*path, i, p))


def constraints_in(jaxpr: FlatJaxpr) -> Iterator[Constraint]:
    """Yield the constraints of a jaxpr and of the bodies in it.

    Args:
        jaxpr: The jaxpr.
    """
    for eqn in jaxpr.eqns:
        for key in _ASKED:
            for sharding in eqn.params.get(key, ()):
                if isinstance(sharding, NamedSharding):
                    yield _constraint(sharding, eqn.source_info)
        if eqn.primitive.name == constraint_p.name:
            yield _constraint(eqn.params["sharding"], eqn.source_info)
        for body in bodies(eqn.params):
            yield from constraints_in(body)
