"""Classes of dims: those that follow the same loops, from equation to equation and into scans.

If one dim of a class is padded in an equation, so is every dim of the class that follows a loop
of that equation: they run over the same indices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from meshwise.graph.loops import PARALLEL, LoopRule, halo_loop
from meshwise.jax_compat.jaxprs import Aval
from meshwise.rules.primitive import Equation
from meshwise.system.union_find import UnionFind
from meshwise.trace.padding.scopes import Scope, Value, ports_of, scopes_of
from meshwise.trace.program import Node
from meshwise.trace.to_graph import RuleCache

_Dim = tuple[int, int, int]  # scope, value, dim

# Operands whose elements beyond the end must not count where a padded loop is reduced.  The
# rows of a lookup (`gather`) beyond the end are never read, whatever the index.
REDUCED_OPERANDS: Mapping[str, tuple[int, ...]] = {
    "reduce_sum": (0,),
    "reduce_max": (0,),
    "reduce_min": (0,),
    "reduce_and": (0,),
    "reduce_or": (0,),
    "dot_general": (0, 1),
    "gather": (),
    "scatter-add": (2,),
    "scatter-sub": (2,),
    "scatter-min": (2,),
    "scatter-max": (2,),
}
# Their loops are not all told apart from windows and groups by their dims alone.
_NOT_PADDED = ("conv_general_dilated",)
# Only their groups are padded, and those are empty.  What stands between the products may be
# infinite where there is nothing.
_PADDED_GROUPS = ("experts", "experts_gradient")


@dataclass(frozen=True, slots=True, kw_only=True)
class DimClass:
    """Dims that are padded together.

    Attributes:
        number: Position among all classes of the program.
        size: The size of each dim.
        dims: For each value that has some, its dims in the class, ascending.
    """

    number: int
    size: int
    dims: Mapping[Value, tuple[int, ...]]

    def of(self, scope: Scope, ident: int) -> tuple[int, ...]:
        """Dims of a value that are in the class."""
        return self.dims.get((scope.number, ident), ())


def dim_classes(root: Scope, rules: RuleCache) -> list[DimClass]:
    """Return all classes of dims of size above 1, in the order of their first value."""
    sets: UnionFind[_Dim] = UnionFind()
    for scope in scopes_of(root):
        for position, node in enumerate(scope.program.nodes):
            if position in scope.bodies:
                _join_ports(sets, scope, scope.bodies[position], node)
            elif not node.bodies:
                _join_loops(sets, scope, node, rules.lookup(node.equation)[1])
    members: dict[_Dim, dict[Value, list[int]]] = {}
    for scope, ident, dim in sorted(sets.parent):
        found = members.setdefault(sets.find((scope, ident, dim)), {})
        found.setdefault((scope, ident), []).append(dim)
    sizes = {
        scope.number: [aval.shape for aval in scope.program.avals] for scope in scopes_of(root)
    }
    return [
        DimClass(
            number=number,
            size=sizes[first[0]][first[1]][first[2]],
            dims={value: tuple(dims) for value, dims in found.items()},
        )
        for number, (first, found) in enumerate(sorted(members.items()))
    ]


def _join(sets: UnionFind[_Dim], left: _Dim, right: _Dim) -> None:
    """Join two classes; the smallest dim stands for one, so that classes have an order."""
    sets.join(*sorted((sets.find(left), sets.find(right))))


def _join_loops(sets: UnionFind[_Dim], scope: Scope, node: Node, rule: LoopRule) -> None:
    first: dict[int, _Dim] = {}
    maps = (*rule.operands, *rule.results)
    for ident, dims in zip((*node.inputs, *node.outputs), maps, strict=True):
        for dim, loops in enumerate(dims):
            size = scope.program.avals[ident].shape[dim]
            if len(loops) == 1 and rule.loops[loops[0]].size == size:
                key = (scope.number, ident, dim)
                _join(sets, first.setdefault(loops[0], key), key)


def _join_ports(sets: UnionFind[_Dim], scope: Scope, body: Scope, node: Node) -> None:
    for port in ports_of(node):
        outer = [ident for ident in (port.entry, port.exit) if ident >= 0]
        inner = [ident for ident in (port.arrival, port.departure) if ident >= 0]
        for dim, size in enumerate(body.program.avals[inner[0]].shape):
            if size > 1:
                key = (body.number, inner[0], dim)
                for ident in inner:
                    _join(sets, key, (body.number, ident, dim))
                for ident in outer:
                    _join(sets, key, (scope.number, ident, dim + port.shift))


def padded_loops(
    scope: Scope, node: Node, rule: LoopRule, dim_class: DimClass
) -> frozenset[int] | None:
    """The loops of an equation that are padded with a class; empty if it has none of its dims.

    Returns:
        None if the equation cannot run padded: a dim of the class stays whole in it or is merged
        with another, or it reduces the dim in a way that padding would change.
    """
    loops: set[int] = set()
    whole = False
    others: set[int] = set()
    maps = (*rule.operands, *rule.results)
    for ident, dims in zip((*node.inputs, *node.outputs), maps, strict=True):
        members = dim_class.of(scope, ident)
        for dim, follows in enumerate(dims):
            if len(follows) > 1:
                others.update(follows)
            elif dim in members and follows:
                loops.add(follows[0])
            elif follows:
                others.update(follows)
        whole |= any(len(dims[dim]) != 1 for dim in members)
        if members and _is_key(scope.program.avals[ident]):
            whole = True
    if whole or loops & others or (loops and not _allows(node.equation, rule, loops)):
        return None
    return frozenset(loops)


def _is_key(aval: Aval) -> bool:
    return bool(jnp.issubdtype(aval.dtype, jax.dtypes.extended))


def _allows(eqn: Equation, rule: LoopRule, loops: set[int]) -> bool:
    if eqn.name in _NOT_PADDED or not rule.ruled:
        return False
    if any(halo_loop(rule, halo) in loops for halo in rule.halos):
        return False
    if eqn.name in _PADDED_GROUPS:
        return rule.dispatch is not None and loops <= {rule.dispatch.groups}
    reduces = any(rule.loops[loop].kind != PARALLEL for loop in loops)
    # Indices beyond the end are any: neither in order nor apart.
    promised = eqn.params.get("indices_are_sorted") or eqn.params.get("unique_indices")
    indexed = len(rule.operands) > 1 and any(
        loop in loops for follows in rule.operands[1] for loop in follows
    )
    return (not reduces or eqn.name in REDUCED_OPERANDS) and not (promised and indexed)
