"""Values without an argument among their ancestors are made inside the loops that use them.

JAX hoists masks, zeros and position tables out of a scan.  In each layout that is wanted they are
cheaper made again than kept or gathered (docs/decisions/0004: constants are generated, never
resharded), and XLA folds collectives of them.  So the equations that make them are copied into
the body of the loop, and the loop's operand goes.  On the way choices between equal values go too,
since they hide that a value is generated.
"""

from __future__ import annotations

from dataclasses import replace

from meshwise.trace.arange import without_dead_code
from meshwise.trace.choices import without_idle_choices
from meshwise.trace.program import Node, Program


def with_constants_inside(program: Program) -> Program:
    """Return the program in which no loop or branch takes a generated value as a constant."""
    program = without_idle_choices(program)
    if not any(node.bodies for node in program.nodes):
        return program
    generated = set(program.constants)
    makers: dict[int, Node] = {}
    nodes: list[Node] = []
    for node in program.nodes:
        if not node.bodies:
            if not node.has_effect and all(i in generated for i in node.inputs):
                generated.update(node.outputs)
                makers.update(dict.fromkeys(node.outputs, node))
            nodes.append(node)
        else:
            nodes.append(_structured(node, program, generated, makers))
    return without_dead_code(replace(program, nodes=tuple(nodes)))


def _structured(node: Node, program: Program, generated: set[int], makers: dict[int, Node]) -> Node:
    structure = node.structure
    assert structure is not None
    sunk = {
        k
        for k, outer in enumerate(node.inputs)
        if outer in generated
        and k not in structure.stacked_operands
        and k not in structure.whole_operands
        and structure.carried_result(k) is None
    }
    bodies: list[Program] = []
    for part, body in zip(structure.parts, node.bodies, strict=True):
        into = {
            inner: node.inputs[k]
            for inner, k in zip(body.inputs, part.operands, strict=True)
            if k in sunk
        }
        inside = _made_inside(body, into, program, makers) if into else body
        left = tuple(i for i in body.inputs if i not in into)
        bodies.append(with_constants_inside(replace(inside, inputs=left)))
    kept = [k for k in range(len(node.inputs)) if k not in sunk]
    equation = replace(
        node.equation,
        in_avals=tuple(node.equation.in_avals[k] for k in kept),
        constants=tuple(node.equation.constants[k] for k in kept),
    )
    return replace(
        node,
        equation=equation,
        inputs=tuple(node.inputs[k] for k in kept),
        bodies=tuple(bodies),
        structure=structure.keeping(kept),
    )


def _made_inside(
    body: Program, sunk: dict[int, int], program: Program, makers: dict[int, Node]
) -> Program:
    """Return the body with the makers of `sunk` (inner id -> outer id) before its equations."""
    avals = list(body.avals)
    constants = dict(body.constants)
    copied: dict[int, int] = {outer: inner for inner, outer in sunk.items()}
    twins = [(inner, outer) for inner, outer in sunk.items() if copied[outer] != inner]
    before: list[Node] = []
    done: set[int] = set()

    def inner_id(outer: int) -> int:
        if outer not in copied:
            avals.append(program.avals[outer])
            copied[outer] = len(avals) - 1
        return copied[outer]

    def make(outer: int) -> None:
        if outer in done:
            return
        done.add(outer)
        maker = makers.get(outer)
        if maker is None:
            constants[inner_id(outer)] = program.constants[outer]
            return
        for operand in maker.inputs:
            make(operand)
        done.update(maker.outputs)
        before.append(
            replace(
                maker,
                inputs=tuple(map(inner_id, maker.inputs)),
                outputs=tuple(map(inner_id, maker.outputs)),
            )
        )

    for outer in sunk.values():
        make(outer)
    renamed = {inner: copied[outer] for inner, outer in twins}
    nodes = [
        replace(node, inputs=tuple(renamed.get(i, i) for i in node.inputs)) for node in body.nodes
    ]
    return Program(
        tuple(avals),
        body.inputs,
        (*before, *nodes),
        tuple(renamed.get(i, i) for i in body.outputs),
        constants,
    )
