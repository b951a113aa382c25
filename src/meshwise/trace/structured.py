"""Structure and bodies of the equations that hold jaxprs: `scan`, `cond`, `while`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax.typing import ArrayLike

from meshwise.graph.structure import (
    Structure,
    cond_structure,
    scan_structure,
    while_structure,
)
from meshwise.jax_compat.jaxprs import ClosedJaxpr, closed_jaxpr, scan_counts, while_parts
from meshwise.rules.primitive import Equation
from meshwise.trace.program import Program
from meshwise.trace.trips import known_trips


def structured(
    eqn: Equation, flat: Callable[[ClosedJaxpr], Program], known: Callable[[int], ArrayLike | None]
) -> tuple[Structure | None, tuple[Program, ...]]:
    """Structure and bodies of a `scan`, `cond` or `while`; none of other equations.

    Args:
        eqn: The equation.
        flat: Makes the program of a closed jaxpr.
        known: Value of an operand, by position, if that is known at trace time, else None.
    """
    match eqn.name:
        case "scan":
            return _scan(eqn, flat)
        case "cond":
            bodies = tuple(flat(closed_jaxpr(branch)) for branch in eqn.params["branches"])
            structure = cond_structure(
                num_operands=len(eqn.in_avals),
                num_results=len(eqn.out_avals),
                num_branches=len(bodies),
            )
            return structure, bodies
        case "while":
            return _while(eqn, flat, known)
        case _:
            return None, ()


def _scan(
    eqn: Equation, flat: Callable[[ClosedJaxpr], Program]
) -> tuple[Structure, tuple[Program, ...]]:
    num_consts, num_carry = scan_counts(eqn.params)
    structure = scan_structure(
        num_operands=len(eqn.in_avals),
        num_results=len(eqn.out_avals),
        num_consts=num_consts,
        num_carry=num_carry,
        length=eqn.params["length"],
        reverse=eqn.params["reverse"],
    )
    return structure, (flat(closed_jaxpr(eqn.params["jaxpr"])),)


def _while(
    eqn: Equation, flat: Callable[[ClosedJaxpr], Program], known: Callable[[int], ArrayLike | None]
) -> tuple[Structure, tuple[Program, ...]]:
    predicate, body, num_predicate_consts, num_body_consts = while_parts(eqn.params)
    bodies = (flat(closed_jaxpr(predicate)), flat(closed_jaxpr(body)))

    def structure(trips: int | None) -> Structure:
        return while_structure(
            num_predicate_consts=num_predicate_consts,
            num_body_consts=num_body_consts,
            num_carry=len(eqn.out_avals),
            trips=trips,
        )

    values = [known(position) for position in range(len(eqn.in_avals))]
    return structure(known_trips(*bodies, structure(None), values)), bodies


def only_branch(params: Mapping[str, Any], number: Any) -> ClosedJaxpr | None:
    """Return the branch of a `cond` that always runs: the only or the known one; else None.

    Args:
        params: The parameters of the equation.
        number: Which branch runs, if that is known at trace time, else None.
    """
    branches = params["branches"]
    if len(branches) == 1:
        return branches[0]
    return None if number is None else branches[min(max(int(number), 0), len(branches) - 1)]


def solver_of(params: Mapping[str, Any], inputs: Sequence[int]) -> tuple[ClosedJaxpr, list[int]]:
    """Return the solver of a `custom_linear_solve`, and its operands: constants, right side."""
    counts = params["const_lengths"]
    first = counts.matvec + counts.vecmat
    return params["jaxprs"].solve, [*inputs[first : first + counts.solve], *inputs[sum(counts) :]]
