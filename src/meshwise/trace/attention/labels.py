"""Values that follow from a product dim by dim: a block of the product gives a block of them.

Each dim of such a value has the *label* of a dim of the product, or None where the value is
constant along it.  What is computed does not depend on the order of dims, so a value is described
by a *node*: a tuple that names the operation and the nodes that it takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np

from meshwise.jax_compat.jaxprs import Aval, Eqn, Literal, Var
from meshwise.rules import elementwise

Labels: TypeAlias = tuple[int | None, ...]
# Nodes: PRODUCT; (OUTSIDE, variable, its labels); (NUMBER, value, dtype); (POSITIONS, ROW or KEY,
# dtype); (MAX or SUM, label, node); (primitive, parameters, nodes).
Node: TypeAlias = tuple[Any, ...]

PRODUCT: Node = ("product",)
OUTSIDE, NUMBER, POSITIONS = "outside", "number", "positions"
MAX, SUM = "max of", "sum of"
ELEMENTWISE = frozenset(elementwise.TABLE) - {"bitcast_convert_type", "stop_gradient", "copy"}
_REDUCTIONS = {"reduce_max": MAX, "reduce_sum": SUM}
# A node is written out as a tree; larger ones are given up, since values may come in often.
_LARGEST = 400


@dataclass(frozen=True, slots=True)
class Value:
    """A value that follows from a product.

    Attributes:
        product: The equation of the product.
        node: What it is.
        labels: Labels of its dims.
        size: Operations of the node, each as often as it is written.
    """

    product: Eqn
    node: Node
    labels: Labels
    size: int = 1


def reduces(node: Node) -> bool:
    """Return whether a node has a maximum or a sum in it, which no block of the product gives."""
    if node[0] in (MAX, SUM):
        return True
    is_leaf = node == PRODUCT or node[0] in (OUTSIDE, NUMBER, POSITIONS)
    return not is_leaf and any(map(reduces, node[2]))


def operation(eqn: Eqn, nodes: tuple[Node, ...]) -> Node:
    """Return the node of an element-wise equation."""
    return (eqn.primitive, tuple(sorted(eqn.params.items())), nodes)


def number(atom: Var) -> Node | None:
    """Return the node of a literal; None for a variable."""
    if not isinstance(atom, Literal):
        return None
    value = np.asarray(atom.val, atom.aval.dtype)
    return (NUMBER, value.item(), str(atom.aval.dtype)) if value.shape == () else None


def followed(eqn: Eqn, known: Mapping[Var, Value]) -> Value | None:
    """Return what an equation makes of values that follow from one product.

    Args:
        eqn: The equation.
        known: Values by variable.

    Returns:
        None if it is none of the operations that are understood, mixes products, or stretches a dim
        of a product that has size 1.
    """
    found = [known[v] for v in eqn.invars if not isinstance(v, Literal) and v in known]
    if not found or len(eqn.outvars) != 1 or any(x.product is not found[0].product for x in found):
        return None
    if eqn.primitive.name in ELEMENTWISE:
        value = _elementwise(eqn, known, found)
    else:
        made = _moved(eqn, found[0])
        value = None if made is None else Value(found[0].product, *made, found[0].size + 1)
    if value is None or value.size > _LARGEST:
        return None
    sizes, shape = value.product.outvars[0].aval.shape, eqn.outvars[0].aval.shape
    is_whole = all(
        label is None or size == sizes[label]
        for size, label in zip(shape, value.labels, strict=True)
    )
    return value if is_whole else None


def _moved(eqn: Eqn, value: Value) -> tuple[Node, Labels] | None:
    name, params, labels = eqn.primitive.name, eqn.params, value.labels
    shape = eqn.outvars[0].aval.shape
    if name == "transpose":
        return value.node, tuple(labels[i] for i in params["permutation"])
    if name == "broadcast_in_dim" and len(eqn.invars) == 1:
        spread: list[int | None] = [None] * len(shape)
        for i, place in enumerate(params["broadcast_dimensions"]):
            spread[place] = labels[i]
        return value.node, tuple(spread)
    if name in ("reshape", "squeeze"):
        kept = reshaped(eqn.invars[0].aval, shape, labels)
        return None if kept is None else (value.node, kept)
    if name == "stop_gradient" and value.node[0] == MAX:
        # The softmax does not depend on what is subtracted, so its derivative does not matter.
        return value.node, labels
    if name in _REDUCTIONS:
        axes = params["axes"]
        summed = [labels[i] for i in axes if labels[i] is not None]
        if len(summed) == 1 and all(
            labels[i] is not None or eqn.invars[0].aval.shape[i] == 1 for i in axes
        ):
            rest = tuple(x for i, x in enumerate(labels) if i not in axes)
            return (_REDUCTIONS[name], summed[0], value.node), rest
    return None


def reshaped(before: Aval, shape: tuple[int, ...], labels: Labels) -> Labels | None:
    """Return the labels after a reshape that adds or removes dims of size 1; None for others."""
    taken = [(size, label) for size, label in zip(before.shape, labels, strict=True) if size > 1]
    if [size for size, _ in taken] != [size for size in shape if size > 1]:
        return None
    rest = iter(taken)
    return tuple(next(rest)[1] if size > 1 else None for size in shape)


def _elementwise(eqn: Eqn, known: Mapping[Var, Value], found: list[Value]) -> Value | None:
    """Return the result of an element-wise equation; other operands are taken from outside."""
    rank = len(eqn.outvars[0].aval.shape)
    labels: list[int | None] = [None] * rank
    for value in found:
        if len(value.labels) != rank:
            return None
        for dim, label in enumerate(value.labels):
            if label is not None and labels[dim] not in (None, label):
                return None
            labels[dim] = label if label is not None else labels[dim]
    nodes: list[Node] = []
    for atom in eqn.invars:
        constant = number(atom)
        if constant is not None:
            nodes.append(constant)
        elif not isinstance(atom, Literal) and atom in known:
            nodes.append(known[atom].node)
        else:
            outside = outside_node(atom, tuple(labels))
            if outside is None:
                return None
            nodes.append(outside)
    node = _simplified(operation(eqn, tuple(nodes)))
    size = 1 + sum(value.size for value in found)
    return Value(found[0].product, node, tuple(labels), size)


def outside_node(atom: Var, labels: Labels) -> Node | None:
    """Return the node of a value from outside where it meets dims with labels; None if unknown."""
    own = labels_in(atom.aval.shape, labels)
    return None if own is None else (OUTSIDE, atom, own)


def labels_in(shape: tuple[int, ...], labels: Labels) -> Labels | None:
    """Return the labels of a value that is constant along its dims of size 1; None if unknown."""
    if shape == ():
        return ()
    if len(shape) != len(labels):
        return None
    own = tuple(label if size > 1 else None for size, label in zip(shape, labels, strict=True))
    if any(size > 1 and label is None for size, label in zip(shape, own, strict=True)):
        return None
    return own


def _simplified(node: Node) -> Node:
    """Return a maximum as itself where it is compared with minus infinity."""
    if str(node[0]) == "max":
        for one, other in (node[2], node[2][::-1]):
            if one[0] == NUMBER and one[1] == -jnp.inf and other[0] == MAX:
                return other
    return node
