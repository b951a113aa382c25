"""A decided graph as XLA sees it: local values, with resharding, and what may be fused.

One `Value` for each instruction of the program of one device that may need a buffer: operators,
the collectives of the resharding paths, and the copies that XLA adds around both.

Source: docs/xla_cpu.md section 3; the kinds follow XLA:CPU's fusion rules.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import cached_property

from meshwise.cluster.mesh import LogicalMesh
from meshwise.graph.graph import Graph, Operator, Tensor
from meshwise.graph.layout import Layout, local_shape
from meshwise.graph.structure import PREDICATE, Structure
from meshwise.intra.operands import (
    is_turned,
    needs_shapes,
    operands_as_read,
    product_shape,
    with_edges,
)
from meshwise.intra.values import FUSIBLE, INITIAL, INPUT, OPAQUE, PART, Values
from meshwise.intra.xla_kinds import (
    ABSORBED,
    BRANCHING,
    DEAR_ROUNDING,
    EXPENSIVE,
    MOVING,
    NARROW,
    PRODUCTS,
    ROUNDED,
    SUMS,
    WIDE_BYTES,
    YNNPACK,
    YNNPACK_DTYPES,
    kind_of,
)
from meshwise.plan.decision import GraphDecision, OperatorDecision, Use
from meshwise.resharding.within import Step, path


class _Emitter:
    """Values of one graph while they are made; lives only inside `emitted`."""

    def __init__(self, graph: Graph, decision: GraphDecision, mesh: LogicalMesh) -> None:
        self.graph = graph
        self.decision = decision
        self.mesh = mesh
        self.out = Values(itemsizes=tuple(t.itemsize for t in graph.tensors))
        self.home: dict[int, tuple[int, Layout]] = {}
        self.copies: dict[tuple[int, int, Layout, Layout], int] = {}
        self.made: dict[tuple[int, Layout], int] = {}
        self.paths: dict[tuple[tuple[int, ...], int, Layout, Layout], tuple[Step, ...]] = {}
        self.sizes: dict[tuple[tuple[int, ...], int, Layout], int] = {}
        # Scalars that are spread out.
        self.splats = {
            op.outputs[0]
            for op in graph.operators
            if op.kind == "broadcast_in_dim" and graph.tensors[op.inputs[0]].shape == ()
        }
        rates = dict(mesh.device.flop_per_s)
        wide = rates.get("float32", 0.0)
        self.narrow = frozenset(dtype for dtype in NARROW if rates.get(dtype, 0.0) < wide)
        # Scatters that add to zeros, by the tensor that they make.
        self.scattered: dict[int, int] = {}
        # Gathered along a dim that is not the major one: lies transposed, each user copies it.
        self.transposed: set[int] = set()

    def bytes_of(self, tensor: Tensor, layout: Layout) -> int:
        key = (tensor.shape, tensor.itemsize, layout)
        if key not in self.sizes:
            shape = local_shape(tensor.shape, layout, self.mesh.sizes)
            self.sizes[key] = math.prod(shape) * tensor.itemsize
        return self.sizes[key]

    def use(self, t: int, use: Use, time: int) -> int:
        """The operand as a user wants it."""
        tensor = self.graph.tensors[t]
        if tensor.generated:
            key = (t, use.layout)
            if key not in self.made:
                num_bytes = self.bytes_of(tensor, use.layout)
                self.made[key] = self.out.add(FUSIBLE, (), num_bytes, t, time)
                if t in self.splats:
                    self.out.splats.add(self.made[key])
            return self.made[key]
        value, home = self.home[t]
        value = self._copy(t, use.group, home, use.via, value, time)
        value = self._copy(t, use.group, use.via, use.layout, value, time)
        return self._straight(value)

    def _straight(self, value: int) -> int:
        if value not in self.transposed:
            return value
        out = self.out
        return out.add(
            FUSIBLE,
            (value,),
            out.num_bytes[value],
            out.tensor[value],
            out.time[value],
            is_moving=True,
            is_copy=True,
        )

    def _copy(
        self, t: int, group: int, before: Layout, after: Layout, value: int, time: int
    ) -> int:
        if before == after:
            return value
        key = (t, group, before, after)
        if key not in self.copies:
            self.copies[key] = self._reshard(t, before, after, value, time)
        return self.copies[key]

    def _reshard(self, t: int, before: Layout, after: Layout, value: int, time: int) -> int:
        tensor = self.graph.tensors[t]
        key = (tensor.shape, tensor.itemsize, before, after)
        if key not in self.paths:
            self.paths[key] = path(tensor.shape, tensor.itemsize, before, after, self.mesh)
        layout = before
        for step in self.paths[key]:
            value = self._step(t, layout, step, self._straight(value), time)
            layout = step.layout
        return value

    def _step(self, t: int, before: Layout, step: Step, value: int, time: int) -> int:
        tensor = self.graph.tensors[t]
        size = self.bytes_of(tensor, step.layout)

        def add(kind: int, source: int, num_bytes: int, *, is_moving: bool = False) -> int:
            return self.out.add(
                kind, (source,), num_bytes, t, time, is_moving=is_moving, is_copy=True
            )

        match step.kind:
            case "slice":
                return add(FUSIBLE, value, size, is_moving=True)
            case "mask":
                return add(FUSIBLE, value, size)
            case "all-gather" | "reduce-scatter":
                outer = local_shape(tensor.shape, before, self.mesh.sizes)[: step.dim]
                if math.prod(outer) == 1:
                    return add(OPAQUE, value, size)
                # The group's tiles must be contiguous: operand and result lie transposed.
                operand_bytes = self.bytes_of(tensor, before)
                moved = add(OPAQUE, add(FUSIBLE, value, operand_bytes, is_moving=True), size)
                self.transposed.add(moved)
                return moved
            case "all-to-all":
                # A tuple of pieces in, one out, and their concatenation.
                pieces = add(OPAQUE, add(FUSIBLE, value, size, is_moving=True), size)
                self.out.fan[pieces] = step.group_size**2
                return add(FUSIBLE, pieces, size, is_moving=True)
            case _:
                return add(OPAQUE, value, size)

    def operator(self, time: int, op: Operator, chosen: OperatorDecision) -> None:
        graph = self.graph
        if all(graph.tensors[t].generated for t in op.outputs):
            return
        operands = [self.use(t, use, time) for t, use in zip(op.inputs, chosen.uses, strict=True)]
        if op.structure is not None:
            self._bodies(time, op, op.structure, chosen, operands)
            return
        if op.rule.halos:
            tensors = [graph.tensors[t] for t in op.inputs]
            operands = with_edges(self.out, time, op, chosen, tensors, self.mesh.sizes, operands)
        if op.kind in SUMS and self._scattered_sum(time, op, chosen, operands):
            return
        shapes = self._local_shapes(op, chosen) if needs_shapes(op) else ()
        given = operands
        operands = operands_as_read(self.out, time, op, given, shapes)
        is_rounded = op.heavy and op.kind in PRODUCTS and bool(self.narrow)
        if is_rounded:
            operands = [
                self._widened(v, time, is_new=v not in given) if self._is_narrow(t) else v
                for v, t in zip(operands, op.inputs, strict=True)
            ]
        if op.kind == "erfc":
            operands = (*operands, *self._erfc_parts(op, chosen, operands[0], time))
        # Several results of one operator lie in one tuple: the first stands for the instruction.
        kind = kind_of(op)
        for t, layout in zip(op.outputs, chosen.results, strict=True):
            is_narrow = self._is_narrow(t)
            is_dear = is_narrow and graph.tensors[t].dtype == DEAR_ROUNDING
            num_bytes = self.bytes_of(graph.tensors[t], layout)
            is_wide = is_rounded and is_narrow
            value = self.out.add(
                kind,
                tuple(operands),
                num_bytes * (WIDE_BYTES // graph.tensors[t].itemsize if is_wide else 1),
                t,
                time,
                is_expensive=op.kind in EXPENSIVE or (is_dear and op.kind in ROUNDED),
                is_moving=op.kind in MOVING,
                is_absorbed=op.kind in ABSORBED,
            )
            self._mark(value, op, t, operands, shapes)
            if is_wide:
                value = self.out.add(FUSIBLE, (value,), num_bytes, t, time, is_expensive=is_dear)
            if is_turned(op):
                value = self.out.rewritten(value, time)
            self.home[t] = (value, layout)

    def _is_narrow(self, t: int) -> bool:
        """Whether the device computes with such numbers in float32, and rounds."""
        return self.graph.tensors[t].dtype in self.narrow

    def _widened(self, v: int, time: int, *, is_new: bool) -> int:
        """An operand of a product in float32.

        Args:
            v: The operand.
            time: Position of the product.
            is_new: Whether it is a copy that only this product reads.
        """
        out = self.out
        num_bytes = out.num_elements(v) * WIDE_BYTES
        if not is_new:
            return out.add(FUSIBLE, (v,), num_bytes, out.tensor[v], time)
        out.kind[v], out.num_bytes[v] = FUSIBLE, num_bytes
        return v

    def _mark(
        self,
        value: int,
        op: Operator,
        t: int,
        operands: Sequence[int],
        shapes: Sequence[tuple[int, ...]],
    ) -> None:
        """What else is to be known of the result of an operator."""
        out, tensors, kind = self.out, self.graph.tensors, op.kind
        if op.heavy and kind == "dot_general":
            shape = product_shape(op, shapes)
            if shape is not None:
                out.flat[value] = shape
            if tensors[t].dtype in YNNPACK_DTYPES:
                out.products.add(value)
        elif kind in YNNPACK:
            if all(tensors[u].dtype in YNNPACK_DTYPES for u in (t, *op.inputs)):
                out.ynnpack.add(value)
            if kind == "div":
                out.divisors[value] = operands[1]
        elif kind == "broadcast_in_dim" or kind.startswith("reduce_"):
            out.spreads.add(value)
        elif kind in BRANCHING:
            out.branching.add(value)
        elif kind.startswith("scatter"):
            out.overwriting.add(value)
            if kind == "scatter-add" and tensors[op.inputs[0]].generated:
                self.scattered[t] = value

    def _local_shapes(self, op: Operator, chosen: OperatorDecision) -> tuple[tuple[int, ...], ...]:
        """Shapes of the operands on one device."""
        pairs = zip(op.inputs, chosen.uses, strict=True)
        sizes = self.mesh.sizes
        return tuple(
            local_shape(self.graph.tensors[t].shape, use.layout, sizes) for t, use in pairs
        )

    def _scattered_sum(
        self, time: int, op: Operator, chosen: OperatorDecision, operands: Sequence[int]
    ) -> bool:
        """A sum with what was added to zeros: XLA adds to the other term instead.

        Source: XLA algebraic_simplifier.cc (HandleAdd).
        """
        out = self.out
        for k, t in enumerate(op.inputs):
            scatter = self.scattered.get(t)
            if scatter is None or operands[k] != scatter or self.num_uses[t] > 1:
                continue
            (result,) = op.outputs
            inputs = (operands[1 - k], *out.inputs[scatter][1:])
            value = out.add(OPAQUE, inputs, out.num_bytes[scatter], result, time)
            out.overwriting.add(value)
            self.home[result] = (value, chosen.results[0])
            return True
        return False

    @cached_property
    def num_uses(self) -> Counter[int]:
        """How often each tensor is read."""
        read = (t for op in self.graph.operators for t in op.inputs)
        return Counter((*read, *self.graph.outputs))

    def _erfc_parts(
        self, op: Operator, chosen: OperatorDecision, x: int, time: int
    ) -> tuple[int, ...]:
        """`exp(-x x)`, `1 / |x|` and `1 / (x x)`: what is dear of an `erfc`, the rest is repeated.

        Source: StableHLO's decomposition of chlo.erfc; compiled programs (JAX 0.10.2).
        """
        size = self.bytes_of(self.graph.tensors[op.outputs[0]], chosen.results[0])
        return tuple(
            self.out.add(FUSIBLE, (x,), size, op.outputs[0], time, is_expensive=True)
            for _ in range(3)
        )

    def _bodies(
        self,
        time: int,
        op: Operator,
        structure: Structure,
        chosen: OperatorDecision,
        operands: Sequence[int],
    ) -> None:
        out, graph = self.out, self.graph
        carried = {k for k, _ in structure.carries}
        read = tuple(
            out.add(INITIAL, (v,), out.num_bytes[v], out.tensor[v], time) if k in carried else v
            for k, v in enumerate(operands)
        )
        loop = out.add(OPAQUE, read, 0, op.outputs[0] if op.outputs else -1, time)
        out.loops[loop] = time
        for t, layout in zip(op.outputs, chosen.results, strict=True):
            value = out.add(PART, (loop,), self.bytes_of(graph.tensors[t], layout), t, time)
            self.home[t] = (value, layout)


def emitted(graph: Graph, decision: GraphDecision, mesh: LogicalMesh) -> Values:
    """The values of a whole program: arguments stay, donated ones are overwritten by results.

    Args:
        graph: The whole graph.
        decision: Its decision.
        mesh: The mesh.
    """
    emitter = _Emitter(graph, decision, mesh)
    out = emitter.out
    values: list[int] = []
    for t, layout in zip(graph.inputs, decision.inputs, strict=True):
        value = out.add(INPUT, (), emitter.bytes_of(graph.tensors[t], layout), t, -1)
        emitter.home[t] = (value, layout)
        values.append(value)
    for time, (op, chosen) in enumerate(zip(graph.operators, decision.operators, strict=True)):
        emitter.operator(time, op, chosen)
    end = len(graph.operators)
    for t, use in zip(graph.outputs, decision.outputs, strict=True):
        out.outputs.append(emitter.use(t, use, end))
    for i, j in graph.aliases:
        out.aliased.setdefault(out.outputs[j], values[i])
    return out


def emitted_body(
    graph: Graph,
    decision: GraphDecision,
    mesh: LogicalMesh,
    structure: Structure,
    number: int,
) -> Values:
    """The values of one run of a body: its inputs lie outside, what a scan slices is sliced.

    Args:
        graph: The body.
        decision: Its decision.
        mesh: The mesh.
        structure: How the operator is bound to it.
        number: Which of the bodies it is.
    """
    emitter = _Emitter(graph, decision, mesh)
    out = emitter.out
    out.is_body = True
    part = structure.parts[number]
    values: dict[int, int] = {}
    # The number of the iteration, which every slice reads.
    counter = out.add(INPUT, (), 0, graph.inputs[0] if graph.inputs else 0, -1)
    for k, t, layout in zip(part.operands, graph.inputs, decision.inputs, strict=True):
        value = values[k] = out.add(INPUT, (), 0, t, -1)
        if k in structure.stacked_operands:
            num_bytes = emitter.bytes_of(graph.tensors[t], layout)
            value = out.add(FUSIBLE, (value, counter), num_bytes, t, -1, is_moving=True)
        emitter.home[t] = (value, layout)
    for time, (op, chosen) in enumerate(zip(graph.operators, decision.operators, strict=True)):
        emitter.operator(time, op, chosen)
    end = len(graph.operators)
    for j, t, use in zip(part.results, graph.outputs, decision.outputs, strict=True):
        value = emitter.use(t, use, end)
        carried = structure.carry_of(j)
        if carried is not None:
            carry = values[carried]
            if value == carry:
                continue
            # The new carry is written into the old one; a collective only if it does not read it.
            if not (
                out.kind[value] == OPAQUE
                and out.is_copy[value]
                and carry not in out.inputs[value]
                and value not in out.outputs
            ):
                value = out.add(FUSIBLE, (value,), out.num_bytes[value], t, end)
            out.aliased[value] = carry
        elif j in structure.stacked_results:
            # A slice of the stacked result is written in place.
            size = out.num_bytes[value] * structure.length
            value = out.add(FUSIBLE, (value, counter), size, t, end, is_moving=True)
            out.placed.add(value)
        elif j != PREDICATE:
            # The result of a branch is written into that of the operator.
            if out.kind[value] == INPUT or value in out.outputs:
                value = out.add(
                    FUSIBLE, (value,), emitter.bytes_of(graph.tensors[t], use.layout), t, end
                )
            out.placed.add(value)
        out.outputs.append(value)
    return out
