"""Constraints of a step's own as pins, where the plan's mesh has the shape of the user's.

The axes of the two meshes are paired in order, those of size 1 left out; names do not matter.  On a
mesh of another shape a constraint has no meaning: it is dropped, and the plan says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from meshwise.cluster.mesh import LogicalMesh
from meshwise.graph.graph import Graph, Operator
from meshwise.graph.layout import Layout
from meshwise.graph.loops import Strategy, enumerate_strategies
from meshwise.intra.options import OperatorPath
from meshwise.intra.shapes import strategy_layouts
from meshwise.jax_compat.jaxprs import ClosedJaxpr
from meshwise.request.methods import Auto, Follow, IntraOp
from meshwise.trace.constraints import Constraint, constraints_in, constraints_of
from meshwise.trace.program import Program
from meshwise.units import plural

# Methods that do not say by themselves how everything is split.
FREE_METHODS = (IntraOp, Auto, Follow)
# Lines that a warning lists.
_LISTED = 4
_NAMELESS = "name one, by jax.sharding.NamedSharding"

_Dims = tuple[tuple[int, ...] | None, ...]


def kept_constraints(
    program: Program, graph: Graph, mesh: LogicalMesh
) -> dict[OperatorPath, frozenset[Strategy]]:
    """Return the strategies that constraints leave to their operators.

    Args:
        program: The program.
        graph: Its graph.
        mesh: The mesh of the plan.

    Returns:
        Strategies by the path of the operator; nothing of constraints that cannot be kept.
    """
    found: dict[OperatorPath, frozenset[Strategy]] = {}
    for path, constraint in constraints_of(program):
        dims = _dims_on(constraint, mesh)
        owner, op = _operator(graph, path)
        if dims is None or owner.tensors[op.outputs[0]].generated:
            continue
        strategies = frozenset(s for s, layout in _ways(op, mesh) if _fits(layout, dims))
        if strategies:
            found[path] = strategies
    return found


def _dims_on(constraint: Constraint, mesh: LogicalMesh) -> _Dims | None:
    """Return for each dim the numbers of the axes of the plan's mesh; None on another mesh."""
    theirs = [(axis, size) for axis, size in constraint.sizes.items() if size > 1]
    ours = [number for number, size in enumerate(mesh.sizes) if size > 1]
    if [size for _, size in theirs] != [mesh.sizes[number] for number in ours]:
        return None
    number = {axis: n for (axis, _), n in zip(theirs, ours, strict=True)}
    return tuple(
        None if axes is None else tuple(number[a] for a in axes if a in number)
        for axes in constraint.dims
    )


def _operator(graph: Graph, path: OperatorPath) -> tuple[Graph, Operator]:
    op = graph.operators[path[0]]
    return (graph, op) if len(path) == 1 else _operator(op.bodies[path[1]], path[2:])


def _ways(op: Operator, mesh: LogicalMesh) -> Iterable[tuple[Strategy, Layout]]:
    """Yield the strategies of an operator of one operand, and how its result lies."""
    for strategy in enumerate_strategies(op.rule, mesh.sizes):
        layouts = strategy_layouts(op, strategy, mesh.sizes)
        idle = any(s == 1 and c != -1 for s, c in zip(mesh.sizes, strategy, strict=True))
        if layouts is not None and not layouts[1][0].partial and not idle:
            yield strategy, layouts[1][0]


def _fits(layout: Layout, dims: _Dims) -> bool:
    wanted = (*dims, *((),) * (len(layout.dims) - len(dims)))
    return all(w is None or w == axes for w, axes in zip(wanted, layout.dims, strict=True))


def dropped_text(dropped: Iterable[Constraint], planned: str, remedy: str) -> list[str]:
    """Return the warnings that constraints are dropped, one for each mesh that they name.

    Args:
        dropped: The constraints.
        planned: What the plan has in place of that mesh.
        remedy: How to ask for a plan that keeps them, `{}` in place of the shape of the mesh.
    """
    lines: dict[tuple[tuple[str, int], ...], list[str]] = {}
    for constraint in dropped:
        places = lines.setdefault(tuple(constraint.sizes.items()), [])
        if constraint.where not in places:
            places.append(constraint.where)
    return [
        f"the {plural(len(places), 'constraint')} at {', '.join(places[:_LISTED])}"
        f"{', ...' if len(places) > _LISTED else ''} "
        f"{'are' if len(places) > 1 else 'is'} not kept: "
        f"{'their' if len(places) > 1 else 'its'} mesh is {dict(sizes) or 'unknown'}, "
        f"and {planned}; {remedy.format(tuple(size for _, size in sizes)) if sizes else _NAMELESS}"
        for sizes, places in lines.items()
    ]


def dropped_in_stages(closed: ClosedJaxpr) -> list[str]:
    """Return what a plan with stages says of the constraints of a step: it keeps none.

    Args:
        closed: The step.
    """
    return dropped_text(
        constraints_in(closed.jaxpr),
        "each stage has a mesh of its own",
        "take it away, or plan without stages, method=mw.IntraOp({})",
    )


def dropped_on(
    program: Program, mesh: LogicalMesh, kept: Mapping[OperatorPath, object], *, decides: bool
) -> list[str]:
    """Return what a plan of one mesh says of the constraints that it does not keep.

    Args:
        program: The program.
        mesh: The mesh of the plan.
        kept: The constraints that it keeps, by path.
        decides: Whether the method decides all layouts by itself, so that no constraint is kept.
    """
    found = [(path, c) for path, c in constraints_of(program)]
    here = {c.where for path, c in found if path in kept}
    dropped = [c for _, c in found if c.where not in here]
    if decides:
        return dropped_text(dropped, "the method decides all layouts", "use method=mw.IntraOp({})")
    apart = [c for c in dropped if _dims_on(c, mesh) is None]
    sizes = dict(zip(mesh.names, mesh.sizes, strict=True))
    uneven = [c for c in dropped if _dims_on(c, mesh) is not None]
    return [
        *dropped_text(
            apart, f"that of the plan is {sizes}", "ask for its shape, method=mw.IntraOp({})"
        ),
        *dropped_text(
            uneven,
            "the layout does not divide the array, or takes axes out of their order",
            "constrain another dim, or pad it",
        ),
    ]
