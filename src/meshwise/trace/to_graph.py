"""Program -> Graph: each equation becomes an operator with its loops.

Rules are looked up once for each distinct (primitive, parameters, shapes).
"""

from __future__ import annotations

from functools import partial
from types import FunctionType

import numpy as np

from meshwise.graph.graph import Graph, Operator, Tensor
from meshwise.graph.loops import LoopRule
from meshwise.jax_compat.source_lines import source_line
from meshwise.rules.primitive import Equation, PrimitiveRule
from meshwise.rules.table import primitive_rule
from meshwise.trace.program import Node, Program

# For one device, or said by the shapes; the text of a function would hold its address.
_UNSAID = ("update_jaxpr", "jaxpr", "sharding", "out_sharding")

_KEY_BYTES = 8  # a threefry key is two 32-bit words


def itemsize(dtype: np.dtype[np.generic]) -> int:
    """Bytes of one element, also of a random key."""
    try:
        return int(np.dtype(dtype).itemsize)
    except TypeError:
        return _KEY_BYTES


def equation_detail(eqn: Equation) -> str:
    """Canonical text of the parameters that decide what an equation does."""
    if not eqn.params:
        return ""
    stated = primitive_rule(eqn).detail
    if stated is not None:
        return stated(eqn)
    return ",".join(
        f"{key}={value}"
        for key, value in eqn.params.items()
        if key not in _UNSAID
        and value is not None
        and not isinstance(value, FunctionType | partial)
        and not (key == "name" and eqn.name == "name")  # a name is for display and pins only
    )


class RuleCache:
    """Rules of the distinct equations of one program."""

    def __init__(self) -> None:
        self._known: dict[object, tuple[PrimitiveRule, LoopRule, float, str]] = {}

    def lookup(self, eqn: Equation) -> tuple[PrimitiveRule, LoopRule, float, str]:
        """Row of the table, loops, FLOP and detail of an equation."""
        detail = equation_detail(eqn)
        key = (
            eqn.name,
            detail,
            tuple((a.shape, a.dtype) for a in eqn.in_avals),
            tuple((a.shape, a.dtype) for a in eqn.out_avals),
        )
        if key not in self._known:
            row = primitive_rule(eqn)
            self._known[key] = (row, row.rule(eqn), row.flop(eqn), detail)
        return self._known[key]


def _named(program: Program) -> list[Node]:
    """Equations of `jax.ad_checkpoint.checkpoint_name`."""
    return [node for node in program.nodes if node.name == "name"]


def _tensors(program: Program, names: dict[int, str]) -> list[Tensor]:
    generated = set(program.constants)
    for node in program.nodes:
        is_free = not (node.bodies or node.has_effect)
        if is_free and all(i in generated for i in node.inputs):
            generated.update(node.outputs)
    names = names | {n.outputs[0]: n.equation.params["name"] for n in _named(program)}
    return [
        Tensor(
            shape=tuple(aval.shape),
            dtype=str(aval.dtype),
            itemsize=itemsize(aval.dtype),
            name=names.get(i, ""),
            generated=i in generated,
        )
        for i, aval in enumerate(program.avals)
    ]


def _structured_operator(node: Node, rules: RuleCache) -> Operator:
    structure = node.structure
    assert structure is not None
    bodies = tuple(to_graph(body, rules=rules) for body in node.bodies)
    flop = sum(
        part.trips * sum(op.flop for op in body.operators)
        for part, body in zip(structure.parts, bodies, strict=True)
    )
    return Operator(
        kind=node.name,
        inputs=node.inputs,
        outputs=node.outputs,
        rule=LoopRule((), (), ()),
        flop=flop,
        where=source_line(node.source),
        bodies=bodies,
        structure=structure,
        detail=f"length={structure.length},reverse={structure.reverse}",
    )


def to_graph(
    program: Program,
    *,
    names: dict[int, str] | None = None,
    aliases: tuple[tuple[int, int], ...] = (),
    rules: RuleCache | None = None,
) -> Graph:
    """Return the graph of a program.

    Args:
        program: A flat program.
        names: Display names of input values, by id.
        aliases: Pairs (input position, output position) of the state.
        rules: Rules already looked up.
    """
    rules = rules or RuleCache()
    operators: list[Operator] = []
    for node in program.nodes:
        if node.bodies:
            operators.append(_structured_operator(node, rules))
            continue
        row, rule, flop, detail = rules.lookup(node.equation)
        operators.append(
            Operator(
                kind=node.name,
                inputs=node.inputs,
                outputs=node.outputs,
                rule=rule,
                flop=flop,
                heavy=row.heavy,
                where=source_line(node.source),
                detail=detail,
                dim_orders=row.dim_orders(node.equation),
                scratch=row.scratch(node.equation),
            )
        )
    return Graph(
        tensors=tuple(_tensors(program, names or {})),
        operators=tuple(operators),
        inputs=program.inputs,
        outputs=program.outputs,
        aliases=aliases,
    )
