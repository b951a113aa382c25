"""Writes the program of one device from a decided graph: tiles, resharding, copies.

Changes of layout come in the order of `plan.counts.walk`, each once for all uses of one group.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from meshwise.cluster.mesh import LogicalMesh
from meshwise.graph.barriers import BARRIER, joint_barriers
from meshwise.graph.graph import Graph, Operator, Tensor
from meshwise.graph.halo import edge_elements, extended_shape
from meshwise.graph.layout import Layout, local_shape
from meshwise.graph.structure import COND, PREDICATE, Structure
from meshwise.memory.dim_orders import copied_into_other_orders
from meshwise.memory.invariants import rounded_constants
from meshwise.memory.local_program import InstructionKind, LocalProgram, LocalValue, Treatment
from meshwise.memory.narrowing import narrow_factors
from meshwise.memory.operands import beside, passed, rewritten
from meshwise.memory.pooling import POOLING_GRADIENT, pooled_comparisons, zeros_beside
from meshwise.memory.scratch import scratch_bytes
from meshwise.memory.target import Target
from meshwise.memory.treatment import image_dims, is_batched, is_grouped
from meshwise.plan.counts.walk import LayoutCopies
from meshwise.plan.decision import GraphDecision, OperatorDecision, Use
from meshwise.plan.offload import HostGroup, host_order
from meshwise.resharding.within import ReshardingStep, tensor_path


def program_of_graph(
    graph: Graph, decision: GraphDecision, mesh: LogicalMesh, target: Target
) -> LocalProgram:
    """Return the program of a whole step: arguments stay, results overwrite donated ones.

    Args:
        graph: The whole graph.
        decision: Its decision.
        mesh: The mesh.
        target: Whose compiler it is for.
    """
    writer = _Writer(graph, mesh, target, is_body=False)
    values: list[int] = []
    in_host = decision.in_host if target.has_host_memory else ()
    for i, (t, layout) in enumerate(zip(graph.inputs, decision.inputs, strict=True)):
        tensor = graph.tensors[t]
        size = math.prod(local_shape(tensor.shape, layout, mesh.sizes)) * tensor.itemsize
        values.append(writer.input(t, 0 if i in in_host else size))
        if i in in_host:
            writer.waiting[t] = values[-1], layout, size
        else:
            writer.copies.define(t, layout, values[-1])
    writer.operators(decision, in_host)
    end = len(graph.operators)
    out = writer.out
    taken = {j for _, j in graph.aliases}
    for j, (t, use) in enumerate(zip(graph.outputs, decision.outputs, strict=True)):
        value = writer.use(t, use, end)
        out.outputs.append(value if j in taken else writer.in_order(value, t, use.layout, end))
    for i, j in graph.aliases:
        value, t = out.outputs[j], graph.outputs[j]
        if i in in_host:
            out.outputs[j] = out.add(LocalValue(InstructionKind.OPAQUE, (value,), 0, t, end))
            continue
        is_taken = out.values[value].kind == InstructionKind.INPUT or value in out.aliases
        if is_taken and value != values[i]:
            # It is copied over the argument.
            size = out.values[value].num_bytes
            value = out.add(LocalValue(InstructionKind.FUSIBLE, (value,), size, t, end))
            out.outputs[j] = value
        out.aliases[value] = values[i]
    return writer.finished()


def program_of_body(
    owner: Operator, chosen: OperatorDecision, number: int, mesh: LogicalMesh, target: Target
) -> LocalProgram:
    """Return the program of one run of a body: inputs lie outside, a scan slices what it stacks.

    Args:
        owner: The operator with the body.
        chosen: Its decision.
        number: Which of the bodies it is.
        mesh: The mesh.
        target: Whose compiler it is for.
    """
    structure, graph, decision = owner.structure, owner.bodies[number], chosen.bodies[number]
    assert structure is not None
    writer = _Writer(graph, mesh, target, is_body=True)
    part = structure.parts[number]
    inputs: dict[int, int] = {}
    for k, t, layout in zip(part.operands, graph.inputs, decision.inputs, strict=True):
        value = inputs[k] = writer.input(t, 0)
        if k in structure.stacked_operands:
            value = writer.moved(value, t, -1, writer.bytes_of(graph.tensors[t], layout))
        writer.copies.define(t, layout, value)
    writer.operators(decision)
    for j, t, use in zip(part.results, graph.outputs, decision.outputs, strict=True):
        writer.result_of_body(structure, j, t, use, inputs)
    return writer.finished()


# An image whose padding makes it so many times larger is spread before a convolution, in steps.
_SPREAD, _SPREAD_STEPS = 4, 2


class _Writer:
    """The program of one graph while it is written."""

    def __init__(self, graph: Graph, mesh: LogicalMesh, target: Target, *, is_body: bool) -> None:
        self.graph, self.mesh, self.target = graph, mesh, target
        self.out = LocalProgram(is_body=is_body)
        # The positions of the values that stand for the tensors.
        self.copies = LayoutCopies[int]()
        self.generated: dict[tuple[int, Layout], int] = {}
        self.paths: dict[
            tuple[tuple[int, ...], int, int, Layout, Layout], tuple[ReshardingStep, ...]
        ] = {}
        self.sizes: dict[tuple[tuple[int, ...], int, Layout], int] = {}
        self.images = image_dims(graph)
        # Values gathered along a dim that is not the major one lie transposed.
        self.transposed: set[int] = set()
        # Tensors that are copied into another order of dims, for all readers.
        self.reordered = (
            copied_into_other_orders(graph) if target.keeps_orders else frozenset[int]()
        )
        # Tensors that have zeros beside them, and those zeros.
        self.pooled = pooled_comparisons(graph) if target.scatters_pooling else frozenset[int]()
        self.zeros: dict[int, tuple[int, ...]] = {}
        # Inputs in the memory of the host with layout and bytes, and when they come.
        self.waiting: dict[int, tuple[int, Layout, int]] = {}
        self.groups: dict[int, HostGroup] = {}

    def finished(self) -> LocalProgram:
        """Return the program, once all of it is written."""
        if self.target.narrows_factors:
            narrow_factors(self.out, self.graph.tensors)
        return self.out

    def bytes_of(self, tensor: Tensor, layout: Layout) -> int:
        """Return the bytes of one device's tile."""
        key = (tensor.shape, tensor.itemsize, layout)
        if key not in self.sizes:
            shape = local_shape(tensor.shape, layout, self.mesh.sizes)
            lanes = self.target.padded_elements(shape, self.images.get(tensor.shape, ()))
            self.sizes[key] = lanes * tensor.itemsize
        return self.sizes[key]

    def input(self, t: int, num_bytes: int) -> int:
        """Add an input of the graph."""
        return self.out.add(LocalValue(InstructionKind.INPUT, (), num_bytes, t, -1))

    def from_host(self, time: int, decision: GraphDecision) -> None:
        """Add what comes from the memory of the host before an operator."""
        group = self.groups.get(time)
        if group is None:
            return
        wanted = [
            (self.graph.operators[i].inputs[k], decision.operators[i].uses[k])
            for i, k in group.gradients
        ]
        wanted += [(self.graph.outputs[j], decision.outputs[j]) for j in group.results]
        before = [self.use(t, use, time) for t, use in wanted]
        for t in group.inputs:
            value, layout, size = self.waiting[t]
            here = LocalValue(InstructionKind.OPAQUE, (value, *before), size, t, time, is_copy=True)
            self.copies.define(t, layout, self.out.add(here))

    def moved(
        self, value: int, t: int, time: int, num_bytes: int = -1, *, is_copy: bool = False
    ) -> int:
        """Add the same elements in another order, or some of them.

        Args:
            value: What is copied.
            t: Its tensor.
            time: Position of the operator that wants it.
            num_bytes: Size of the copy; that of the value by default.
            is_copy: Whether resharding wants it.
        """
        size = self.out.values[value].num_bytes if num_bytes < 0 else num_bytes
        return self.out.add(
            LocalValue(
                InstructionKind.FUSIBLE, (value,), size, t, time, is_copy=is_copy, is_moving=True
            )
        )

    # Uses: from the layout of the definition to that of the operand.

    def use(self, t: int, use: Use, time: int) -> int:
        """Return the value that a user reads."""
        tensor = self.graph.tensors[t]
        if tensor.generated:
            key = (t, use.layout)
            if key not in self.generated:
                size = self.bytes_of(tensor, use.layout)
                self.generated[key] = self.out.add(
                    LocalValue(InstructionKind.FUSIBLE, (), size, t, time)
                )
            return self.generated[key]

        def change(value: int, before: Layout, after: Layout) -> int:
            return self.resharded(t, before, after, value, time)

        return self.straight(self.copies.of(t, use, change))

    def resharded(self, t: int, before: Layout, after: Layout, value: int, time: int) -> int:
        """Return the value in another layout."""
        tensor = self.graph.tensors[t]
        key = (tensor.shape, tensor.itemsize, tensor.sharers, before, after)
        if key not in self.paths:
            self.paths[key] = tensor_path(tensor, before, after, self.mesh)
        for step in self.paths[key]:
            value = self.step(t, before, step, self.straight(value), time)
            before = step.layout
        return value

    def straight(self, value: int) -> int:
        """Return a value in its own order of dims: each reader copies what lies transposed."""
        if value not in self.transposed:
            return value
        made = self.out.values[value]
        return self.moved(value, made.tensor, made.time, is_copy=True)

    def in_order(self, value: int, t: int, layout: Layout, time: int) -> int:
        """Return a result in its own order of dims, where the target made it in another one."""
        shape = local_shape(self.graph.tensors[t].shape, layout, self.mesh.sizes)
        made = self.out.values[value]
        if made.kind == InstructionKind.INPUT or not self.target.lies_transposed(shape):
            return value
        copy = LocalValue(InstructionKind.OPAQUE, (value,), made.num_bytes, t, time)
        return self.out.add(copy)

    def step(self, t: int, before: Layout, step: ReshardingStep, value: int, time: int) -> int:
        """Add one step of a path."""
        tensor = self.graph.tensors[t]
        size = self.bytes_of(tensor, step.layout)

        def opaque(source: int, size: int = size) -> int:
            is_summed = step.kind in ("all-reduce", "reduce-scatter")
            return self.out.add(
                LocalValue(
                    InstructionKind.OPAQUE,
                    (source,),
                    size,
                    t,
                    time,
                    is_copy=True,
                    is_summed=is_summed,
                    is_sent=not is_summed,
                )
            )

        match step.kind:
            case "slice":
                return self.moved(value, t, time, size, is_copy=True)
            case "mask":
                return self.out.add(
                    LocalValue(InstructionKind.FUSIBLE, (value,), size, t, time, is_copy=True)
                )
            case "reduce-scatter" if step.group_size >= self.target.sums_whole_from:
                # All of the sum is made, and a slice of it taken.
                whole = opaque(value, self.bytes_of(tensor, before))
                return self.moved(whole, t, time, size, is_copy=True)
            case "all-gather" | "reduce-scatter":
                outer = local_shape(tensor.shape, before, self.mesh.sizes)[: step.dim]
                if math.prod(outer) == 1:
                    return opaque(value)
                # The group's tiles must be contiguous: operand and result lie transposed.
                size_before = self.bytes_of(tensor, before)
                tiles = self.moved(value, t, time, size_before, is_copy=True)
                moved = opaque(tiles)
                self.transposed.add(moved)
                return moved
            case "all-to-all":
                # A tuple of pieces in, one out, and their concatenation.
                tiles, paths = self.moved(value, t, time, size, is_copy=True), step.group_size**2
                pieces = self.out.add(
                    LocalValue(
                        InstructionKind.OPAQUE,
                        (tiles,),
                        size,
                        t,
                        time,
                        is_copy=True,
                        is_sent=True,
                        num_paths=paths,
                    )
                )
                return self.moved(pieces, t, time, size, is_copy=True)
            case _:
                return opaque(value)

    # Operators.

    def operators(self, decision: GraphDecision, in_host: Collection[int] = ()) -> None:
        """Add all operators; barriers that stand together are one, where the target has any."""
        runs = joint_barriers(self.graph) if self.target.has_barriers else {}
        order, groups = host_order(self.graph, in_host)
        self.groups = {group.time: group for group in groups}
        for time in order:
            self.from_host(time, decision)
            op, chosen = self.graph.operators[time], decision.operators[time]
            if all(self.graph.tensors[t].generated for t in op.outputs):
                continue
            if op.kind != BARRIER or not self.target.has_barriers:
                self.operator(time, op, chosen)
            elif time in runs:
                self.barrier(runs[time], decision)

    def barrier(self, run: Sequence[int], decision: GraphDecision) -> None:
        """Add a barrier that the operands of several operators pass."""
        found = [(self.graph.operators[i], decision.operators[i]) for i in run]
        operands = [self.use(op.inputs[0], chosen.uses[0], run[0]) for op, chosen in found]
        tensors = [op.outputs[0] for op, _ in found]
        values = passed(self.out, operands, tensors, run[0])
        for t, (_, chosen), value in zip(tensors, found, values, strict=True):
            self.copies.define(t, chosen.results[0], value)

    def operator(self, time: int, op: Operator, chosen: OperatorDecision) -> None:
        """Add one operator with what its operands need before."""
        uses = zip(op.inputs, chosen.uses, strict=True)
        operands = [self.use(t, use, time) for t, use in uses]
        if op.structure is not None:
            self.loop(time, op, op.structure, chosen, operands)
            return
        if op.rule.halos:
            operands = self.with_edges(time, op, chosen, operands)
        if op.dim_orders:
            operands[0] = self.in_lanes(operands[0], op, chosen.uses[0].layout, time)
        treated = self.target.treatment(op, self.shapes(op, chosen) if op.heavy else ())
        folds_swaps = self.target.folds_swaps
        operands = rewritten(self.out, op, time, treated, operands, folds_swaps=folds_swaps)
        if op.heavy:
            operands = [self.widened(v, t, time) for v, t in zip(operands, op.inputs, strict=True)]
        if treated.num_parts or treated.num_indices:
            made, last = self.graph.tensors[op.outputs[0]], self.graph.tensors[op.inputs[-1]]
            sizes = self.bytes_of(made, chosen.results[0]), last.itemsize
            operands += beside(self.out, op, time, treated, operands, sizes)
        if op.kind == POOLING_GRADIENT and op.inputs[-1] in self.zeros:
            operands = [*self.zeros[op.inputs[-1]], *operands]
            treated = treated._replace(is_in_place=True)
        if op.scratch is not None:
            operands.append(self.scratch(time, op, chosen, operands))
        # Several results of one operator lie in one tuple: the first stands for the instruction.
        for t, layout in zip(op.outputs, chosen.results, strict=True):
            value = self.result(time, op, treated, t, layout, tuple(operands))
            if op.has_effect:
                self.out.effects.add(value)
            if t in self.reordered:
                size = self.out.values[value].num_bytes
                copy = LocalValue(InstructionKind.REDUCE, (value,), size, t, time, is_moving=True)
                value = self.out.add(copy)
            if t in self.pooled:
                self.zeros[t] = zeros_beside(self.out, value)
            self.copies.define(t, layout, value)

    def scratch(
        self, time: int, op: Operator, chosen: OperatorDecision, operands: Sequence[int]
    ) -> int:
        """Add what an operator holds while it runs."""
        tensors, sizes = self.graph.tensors, self.mesh.sizes
        size = scratch_bytes(op, chosen.strategy, sizes, tensors)
        t = op.outputs[0]
        return self.out.add(
            LocalValue(InstructionKind.OPAQUE, tuple(operands), size, t, time, is_copy=True)
        )

    def in_lanes(self, value: int, op: Operator, layout: Layout, time: int) -> int:
        """Return an image as a convolution reads it: one of few features is spread in two steps."""
        t = op.inputs[0]
        kernel, result = (self.graph.tensors[x].shape for x in (op.inputs[1], op.outputs[0]))
        tensor = self.graph.tensors[t]
        shape = local_shape(tensor.shape, layout, self.mesh.sizes)
        image, weights, made = op.dim_orders
        is_filled = self.bytes_of(tensor, layout) < _SPREAD * math.prod(shape) * tensor.itemsize
        # The first two dims are those of batch and features.
        if is_filled or len(image) == 2:
            return value
        # In the gradient of a kernel the result is the kernel.
        width = min(kernel[weights[-1]], result[made[-1]])
        size = self.target.spread_elements([shape[k] for k in image], width) * tensor.itemsize
        for _ in range(_SPREAD_STEPS):
            value = self.out.add(
                LocalValue(InstructionKind.OPAQUE, (value,), size, t, time, is_copy=True)
            )
        return value

    def shapes(self, op: Operator, chosen: OperatorDecision) -> tuple[tuple[int, ...], ...]:
        """Return shapes of the operands on one device."""
        return tuple(
            local_shape(self.graph.tensors[t].shape, use.layout, self.mesh.sizes)
            for t, use in zip(op.inputs, chosen.uses, strict=True)
        )

    def result(
        self, time: int, op: Operator, treated: Treatment, t: int, layout: Layout,
        operands: tuple[int, ...],
    ) -> int:  # fmt: skip
        """Add a result of an operator."""
        tensor = self.graph.tensors[t]
        size = self.bytes_of(tensor, layout)
        itemsize = self.product_itemsize(tensor) if op.heavy else tensor.itemsize
        value = self.out.add(
            LocalValue(
                treated.kind,
                operands,
                size * itemsize // max(tensor.itemsize, 1),
                t,
                time,
                is_expensive=treated.is_expensive,
                is_moving=treated.is_moving,
                is_reshaped=treated.is_reshaped,
                is_in_place=treated.is_in_place,
                is_product=op.heavy,
                is_convolution=bool(op.dim_orders),
                is_batched=op.heavy and is_batched(op),
                is_grouped=op.heavy and is_batched(op) and is_grouped(op),
            )
        )
        if itemsize != tensor.itemsize:
            value = self.out.add(LocalValue(InstructionKind.FUSIBLE, (value,), size, t, time))
        return self.moved(value, t, time) if treated.is_copied else value

    def product_itemsize(self, tensor: Tensor) -> int:
        """Return bytes of an element where a dense product reads or makes it."""
        return self.target.product_itemsize(tensor, self.mesh.device)

    def widened(self, value: int, t: int, time: int) -> int:
        """Return an operand of a dense product in the dtype in which it is computed."""
        tensor = self.graph.tensors[t]
        itemsize = self.product_itemsize(tensor)
        if itemsize == tensor.itemsize:
            return value
        size = self.out.values[value].num_bytes * itemsize // tensor.itemsize
        return self.out.add(LocalValue(InstructionKind.FUSIBLE, (value,), size, t, time))

    def with_edges(
        self, time: int, op: Operator, chosen: OperatorDecision, operands: Sequence[int]
    ) -> list[int]:
        """Return the operands with the edges of the neighbours around them."""
        sizes, tensors = self.mesh.sizes, [self.graph.tensors[t] for t in op.inputs]
        shapes = [tensor.shape for tensor in tensors]
        pieces: dict[int, list[int]] = {}
        for edge, elements in edge_elements(op.rule, chosen.strategy, sizes, shapes):
            k = edge.halo.operand
            size = elements * tensors[k].itemsize
            sent = self.moved(operands[k], op.inputs[k], time, size)
            edge_value = LocalValue(
                InstructionKind.OPAQUE,
                (sent,),
                size,
                op.inputs[k],
                time,
                is_copy=True,
                is_sent=True,
            )
            pieces.setdefault(k, [operands[k]]).append(self.out.add(edge_value))
        found = list(operands)
        for k, parts in pieces.items():
            shape = extended_shape(op.rule, chosen.strategy, sizes, k, shapes[k])
            size = math.prod(shape) * tensors[k].itemsize
            found[k] = self.out.add(
                LocalValue(
                    InstructionKind.FUSIBLE, tuple(parts), size, op.inputs[k], time,
                    is_copy=True, is_moving=True,
                )
            )  # fmt: skip
        return found

    # Loops and branches.

    def loop(
        self, time: int, op: Operator, structure: Structure, chosen: OperatorDecision,
        operands: Sequence[int],
    ) -> None:  # fmt: skip
        """Add an operator with bodies: its carries, itself, and its results."""
        out = self.out
        carried = {k for k, _ in structure.carries}
        reads: list[int] = []
        for k, v in enumerate(operands):
            size, t = out.values[v].num_bytes, op.inputs[k]
            reads.append(
                out.add(LocalValue(InstructionKind.INITIAL, (v,), size, t, time))
                if k in carried
                else v
            )
        first = op.outputs[0] if op.outputs else -1
        if self.target.narrows_factors:
            for k, size in rounded_constants(op, chosen, self.mesh.sizes):
                copy = LocalValue(InstructionKind.OPAQUE, (operands[k],), size, op.inputs[k], time)
                reads.append(out.add(copy))
        loop = out.add(LocalValue(InstructionKind.OPAQUE, tuple(reads), 0, first, time))
        out.loops[loop] = time
        if op.has_effect:
            out.effects.add(loop)
        if structure.kind == COND:
            out.branches.add(loop)
        for t, layout in zip(op.outputs, chosen.results, strict=True):
            size = self.bytes_of(self.graph.tensors[t], layout)
            value = out.add(LocalValue(InstructionKind.PART, (loop,), size, t, time))
            self.copies.define(t, layout, value)

    def result_of_body(
        self, structure: Structure, j: int, t: int, use: Use, inputs: dict[int, int]
    ) -> None:
        """Add what becomes of a result of a body.

        Args:
            structure: How the body is bound to its operator.
            j: The result of the operator, or PREDICATE.
            t: The tensor in the body.
            use: The layout that is wanted.
            inputs: For each operand of the operator its value in the body.
        """
        out, end = self.out, len(self.graph.operators)
        value = self.use(t, use, end)
        made, size = out.values[value], self.bytes_of(self.graph.tensors[t], use.layout)
        carried = structure.carry_of(j)
        if carried is not None:
            carry = inputs[carried]
            if value == carry:
                return
            # The new carry is written into the old one; a collective only if it does not read it.
            is_direct = (
                made.kind == InstructionKind.OPAQUE and made.is_copy and carry not in made.inputs
            )
            if not is_direct or value in out.outputs:
                value = out.add(LocalValue(InstructionKind.FUSIBLE, (value,), size, t, end))
            out.aliases[value] = carry
        elif j in structure.stacked_results:
            # A slice of the stacked result is written in place.
            value = self.moved(value, t, end, size * structure.length)
            out.in_loop.add(value)
        elif j != PREDICATE:
            # The result of a branch is written into that of the operator.
            if made.kind == InstructionKind.INPUT or value in out.outputs:
                value = out.add(LocalValue(InstructionKind.FUSIBLE, (value,), size, t, end))
            out.in_loop.add(value)
        out.outputs.append(value)
