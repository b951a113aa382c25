"""Program + decision -> the program of one device: local shapes, explicit collectives.

The function built here runs inside `shard_map`.  It walks the equations in order; each operand
reaches the layout that the decision wants along the path that the planner priced, once for each
user group, and each equation runs in its local form.

Source: docs/decisions/0005.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array, lax

from meshwise.cluster.mesh import LogicalMesh
from meshwise.graph.barriers import BARRIER, joint_barriers
from meshwise.graph.follow import strategy_for_result
from meshwise.graph.graph import Graph, Operator
from meshwise.graph.layout import Layout, replicated
from meshwise.graph.loops import NONE
from meshwise.graph.sends import waits_for_all
from meshwise.jax_compat.source_lines import source_scope
from meshwise.plan.counts.walk import LayoutCopies
from meshwise.plan.decision import GraphDecision, OperatorDecision, Use
from meshwise.resharding.within import FREE, ReshardingStep, tensor_path
from meshwise.rules.table import primitive_rule
from meshwise.spmd.collectives import apply_step
from meshwise.spmd.from_host import FromHost
from meshwise.spmd.halo import exchange
from meshwise.spmd.order import Order, communicates, decides, is_inlined, passed_on
from meshwise.spmd.shards import SpaceShards
from meshwise.trace.evaluate import run_structured
from meshwise.trace.program import Node, Program


class _Device:
    """Values of one device while its program is traced; lives only inside `run_local`."""

    def __init__(self, program: Program, graph: Graph, mesh: LogicalMesh, order: Order) -> None:
        self.program = program
        self.graph = graph
        self.mesh = mesh
        self.order = order
        self.values = LayoutCopies[Array]()
        self.made: dict[tuple[int, Layout], Array] = {}
        self.producer = {out: node for node in program.nodes for out in node.outputs}

    def reshard(self, ident: int, value: Array, before: Layout, after: Layout) -> Array:
        if before == after:
            return value
        tensor = self.graph.tensors[ident]
        layout = before
        for step in tensor_path(tensor, before, after, self.mesh):
            value = self._step(value, layout, step)
            layout = step.layout
        return value

    def _step(self, value: Array, layout: Layout, step: ReshardingStep) -> Array:
        def run(tile: Array) -> Array:
            return apply_step(tile, layout, step, self.mesh.sizes, self.mesh.names)

        if step.kind not in FREE:
            return self.order.communicate(run, value)
        result = run(value)
        self.order.derive([result], [value])
        return result

    def barrier(self, run: Sequence[int], decision: GraphDecision) -> None:
        """Let operands of several barriers pass at once."""
        operators = [(self.graph.operators[i], decision.operators[i]) for i in run]
        operands = [self.use(op.inputs[0], chosen.uses[0]) for op, chosen in operators]
        results = lax.optimization_barrier(operands)
        for (op, chosen), operand, result in zip(operators, operands, results, strict=True):
            self.order.derive([result], [operand])
            self.values.define(op.outputs[0], chosen.results[0], result)

    def use(self, ident: int, use: Use) -> Array:
        """Return the operand as one user wants it."""
        if self.graph.tensors[ident].generated:
            return self.generate(ident, use.layout)

        def change(value: Array, before: Layout, after: Layout) -> Array:
            return self.reshard(ident, value, before, after)

        return self.values.of(ident, use, change)

    def generate(self, ident: int, layout: Layout) -> Array:
        """Return a generated value in a layout, made from its own generated operands."""
        key = (ident, layout)
        if key not in self.made:
            self.made[key] = self._generate(ident, layout)
        return self.made[key]

    def _generate(self, ident: int, layout: Layout) -> Array:
        whole = replicated(len(layout.dims))
        node = self.producer.get(ident)
        if node is None:
            value = jnp.asarray(self.program.constants[ident])
            return self.reshard(ident, value, whole, layout)
        wanted = Layout(layout.dims)
        index = node.outputs.index(ident)
        equation = node.equation
        row = primitive_rule(equation)
        rule = row.rule(equation)
        chosen = strategy_for_result(rule, index, wanted, self.mesh.sizes)
        if chosen is None:
            if wanted != whole:
                return self.reshard(ident, self.generate(ident, whole), whole, layout)
            operands = tuple(replicated(len(a.shape)) for a in equation.in_avals)
            chosen = ((NONE,) * len(self.mesh.sizes), operands)
        strategy, operand_layouts = chosen
        args = [self.generate(i, lay) for i, lay in zip(node.inputs, operand_layouts, strict=True)]
        shards = SpaceShards(rule, strategy, self.mesh.sizes, self.mesh.names)
        results = row.local(equation, shards, args)
        return self.reshard(ident, results[index], wanted, layout)


def run_local(
    program: Program,
    graph: Graph,
    decision: GraphDecision,
    mesh: LogicalMesh,
    args: Sequence[Array],
    *,
    in_order: bool = False,
    reads_all: bool = False,
) -> list[Array]:
    """Return the program of one device, on local tiles of the arguments.

    Args:
        program: The equations.
        graph: The graph made from `program`.
        decision: What the planner decided.
        mesh: The mesh; its axis names are bound by the caller's `shard_map`.
        args: Local tiles in the layouts `decision.inputs`.
        in_order: Keep collectives and loops apart by data (`spmd.order`).
        reads_all: For that, read all results of loops, not only small ones.

    Returns:
        Local tiles in the layouts `decision.outputs[j].layout`.
    """
    order = Order(is_kept=in_order, reads_all=reads_all)
    device = _Device(program, graph, mesh, order)
    for ident, layout, value in zip(program.inputs, decision.inputs, args, strict=True):
        device.values.define(ident, layout, value)
    host = FromHost(graph, decision, args, order)
    runs = joint_barriers(graph)
    for position in host.operators:
        node, operator = program.nodes[position], graph.operators[position]
        chosen = decision.operators[position]
        for ident, layout, value in host.before(position, device.use):
            device.values.define(ident, layout, value)
        if all(graph.tensors[i].generated for i in node.outputs):
            continue
        if operator.kind == BARRIER:
            if position in runs:
                with source_scope(node.source):
                    device.barrier(runs[position], decision)
            continue
        with source_scope(node.source):
            operands = [host.operand(position, k, device.use) for k in range(len(node.inputs))]
            if node.bodies:
                results = _structured(node, operator, chosen, mesh, operands, order)
            else:
                results = _computed(node, operator, chosen, mesh, operands, order)
        for ident, layout, value in zip(node.outputs, chosen.results, results, strict=True):
            device.values.define(ident, layout, value)
    uses = zip(program.outputs, decision.outputs, strict=True)
    return host.back([device.use(ident, use) for ident, use in uses])


def _computed(
    node: Node,
    operator: Operator,
    chosen: OperatorDecision,
    mesh: LogicalMesh,
    operands: list[Array],
    order: Order,
) -> list[Array]:
    """Return the results of an operator without bodies, on local tiles."""
    row, rule, strategy = primitive_rule(node.equation), operator.rule, chosen.strategy
    shards = SpaceShards(rule, strategy, mesh.sizes, mesh.names)
    waits = waits_for_all(rule, strategy, mesh.sizes)
    if waits:
        # What is sent first may wait for less than the rest.
        operands = order.before_sending(operands)
    operands = exchange(rule, strategy, mesh.sizes, mesh.names, operands, order.communicate)
    results = row.local(node.equation, shards, operands)
    order.derive(results, operands)
    if waits:
        order.after_loop(results)
    return results


def _structured(
    node: Node,
    operator: Operator,
    chosen: OperatorDecision,
    mesh: LogicalMesh,
    operands: list[Array],
    order: Order,
) -> list[Array]:
    """Return the results of an operator with bodies, on local tiles."""
    waits = order.is_kept and communicates(operator, chosen, mesh)
    if waits:
        operands = order.before_loop(operands, decides(node, chosen), is_inlined=is_inlined(node))
    results = _run_bodies(node, chosen, operator, mesh, operands, order)
    passed = passed_on(node, chosen)
    made = [value for j, value in enumerate(results) if j not in passed]
    order.derive(made, operands)
    for j, k in passed.items():
        order.derive([results[j]], [operands[k]])
    if waits:
        order.after_loop(made)
    return results


def _run_bodies(
    node: Node,
    chosen: OperatorDecision,
    operator: Operator,
    mesh: LogicalMesh,
    operands: list[Array],
    order: Order,
) -> list[Array]:
    in_order, reads_all = order.is_kept, order.reads_all

    def body(part: int, values: list[Array]) -> list[Array]:
        graph, decision = operator.bodies[part], chosen.bodies[part]
        program = node.bodies[part]
        return run_local(
            program, graph, decision, mesh, values, in_order=in_order, reads_all=reads_all
        )

    return run_structured(node, operands, body)
