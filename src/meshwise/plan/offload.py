"""State that only the update reads may stay in the memory of the host between its uses.

It comes to the device in groups, one for each parameter: the moments of a parameter come when its
gradient is there and the group before the last has been updated, and go back when they are.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from meshwise.cluster.mesh import DeviceSpec, LogicalMesh
from meshwise.graph.graph import Graph, Operator
from meshwise.graph.layout import local_shape
from meshwise.graph.light import is_light
from meshwise.plan.decision import GraphDecision

# While one group is updated the next one comes.
_GROUPS_AT_ONCE = 2


class HostGroup(NamedTuple):
    """Inputs that come from the memory of the host together.

    Attributes:
        inputs: The inputs, by tensor.
        time: Position of the operator before which they come.
        gradients: Operators and their operands, by position, that they wait for.
        results: Results of the step, by position, that must have been made before.
    """

    inputs: tuple[int, ...]
    time: int
    gradients: tuple[tuple[int, int], ...]
    results: tuple[int, ...]


class HostOrder(NamedTuple):
    """In which order a program runs that has inputs in the memory of the host.

    Attributes:
        operators: The positions of the operators.
        groups: The inputs, in the order in which they come.
    """

    operators: Sequence[int]
    groups: tuple[HostGroup, ...]


def offloadable(graph: Graph) -> tuple[int, ...]:
    """Return the positions of the inputs that may stay in host memory.

    It is state that the step returns anew and that meets a gradient, and nothing that follows from
    it is a dense product or goes into a loop: the moments of an optimizer, but no parameters.
    Scalars stay on the device.

    Args:
        graph: The graph.
    """
    kept: set[int] = set()
    for op in reversed(graph.operators):
        if op.heavy or op.bodies or not kept.isdisjoint(op.outputs):
            kept.update(op.inputs)
    kept.update(graph.outputs)
    late, readers = _late(graph), _readers(graph)
    return tuple(
        i
        for i, _ in sorted(graph.aliases)
        if (t := graph.inputs[i]) not in kept
        and graph.tensors[t].shape
        and any(
            u in late
            for j in _after(graph, readers, {t}).operators
            for u in graph.operators[j].inputs
        )
    )


def host_order(graph: Graph, positions: Collection[int]) -> HostOrder:
    """Return in which order a program runs, and when its inputs come.

    Args:
        graph: The graph.
        positions: Positions of the inputs that lie in the memory of the host.
    """
    if not positions:
        return HostOrder(range(len(graph.operators)), ())
    return _Update(graph, positions).order()


class _Update:
    """The operators that run after all others, group by group."""

    def __init__(self, graph: Graph, positions: Collection[int]) -> None:
        self.graph = graph
        self.inputs = {graph.inputs[i] for i in positions}
        self.result_of = {graph.inputs[i]: j for i, j in graph.aliases if i in positions}
        self.maker = {t: i for i, op in enumerate(graph.operators) for t in op.outputs}
        self.late, self.readers = _late(graph), _readers(graph)
        self.follows = _after(graph, self.readers, self.inputs).tensors
        self.members = self._members()

    def _members(self) -> frozenset[int]:
        """Return what follows from the inputs, and what only that reads, element by element."""
        found: set[int] = set()
        wanted = set(self.graph.outputs)
        for i, op in reversed(list(enumerate(self.graph.operators))):
            is_free = _is_repeated(op) and wanted.isdisjoint(op.outputs)
            if is_free or not self.follows.isdisjoint(op.inputs):
                found.add(i)
            else:
                wanted.update(op.inputs)
        return frozenset(found)

    def order(self) -> HostOrder:
        """Return the order: what is available first comes first."""
        gradients = {t: self._gradient(t) for t in self.inputs}
        needs = {j: self._needed(j) for j, t in enumerate(self.graph.outputs) if t in self.maker}

        results = frozenset(self.result_of.values())

        def rank(j: int) -> tuple[bool, int, int, int]:
            inputs = self._inputs_of(needs[j])
            there = [self._made(gradients[t]) for t in inputs]
            return j in results, len(inputs), max(there, default=-1), j

        found = dict.fromkeys(i for i in range(len(self.graph.operators)) if i not in self.members)
        groups: list[HostGroup] = []
        come: set[int] = set()
        for j in sorted(needs, key=rank):
            new = sorted(needs[j] - found.keys())
            inputs = tuple(sorted(self._inputs_of(new) - come))
            if inputs:
                come.update(inputs)
                earlier = groups[-_GROUPS_AT_ONCE].inputs if len(groups) >= _GROUPS_AT_ONCE else ()
                groups.append(
                    HostGroup(
                        inputs=inputs,
                        time=new[0],
                        gradients=tuple(dict.fromkeys(g for t in inputs if (g := gradients[t]))),
                        results=tuple(
                            r for t in earlier if (r := self._made_result(t, found)) >= 0
                        ),
                    )
                )
            found |= dict.fromkeys(new)
        return HostOrder(tuple(found | dict.fromkeys(sorted(self.members))), tuple(groups))

    def _made_result(self, t: int, made: Collection[int]) -> int:
        """Return which result takes the place of an input; -1 if it is not made yet.

        A group may come for another result: a norm of all moments, an average that the loss reads.
        """
        j = self.result_of.get(t, -1)
        return j if j >= 0 and self.maker.get(self.graph.outputs[j]) in made else -1

    def _needed(self, j: int) -> frozenset[int]:
        """Return the members that lead to a result."""
        found: set[int] = set()
        todo = [self.graph.outputs[j]]
        while todo:
            i = self.maker.get(todo.pop(), -1)
            if i in self.members and i not in found:
                found.add(i)
                todo += self.graph.operators[i].inputs
        return frozenset(found)

    def _inputs_of(self, operators: Iterable[int]) -> set[int]:
        """Return the inputs in the memory of the host that operators read."""
        return {t for i in operators for t in self.graph.operators[i].inputs if t in self.inputs}

    def _made(self, gradient: tuple[int, int] | None) -> int:
        """Return when a gradient is made."""
        if gradient is None:
            return -1
        operator, operand = gradient
        return self.maker.get(self.graph.operators[operator].inputs[operand], -1)

    def _gradient(self, t: int) -> tuple[int, int] | None:
        """Return where a gradient comes in that an input meets; None if it meets none."""
        after = _after(self.graph, self.readers, {t})
        places = (self._leading(self.graph.operators[i], after.tensors) for i in after.operators)
        return next((place for place in places if place is not None), None)

    def _leading(self, op: Operator, follows: Collection[int]) -> tuple[int, int] | None:
        """Return the member, and its operand from outside, by which a gradient reaches an operator.

        Of several operands it is the largest.
        """
        while True:
            leading = [k for k, u in enumerate(op.inputs) if u in self.late and u not in follows]
            if not leading:
                return None
            operand = max(leading, key=lambda k: (self.graph.tensors[op.inputs[k]].num_bytes, -k))
            before = self.maker[op.inputs[operand]]
            if before not in self.members:
                return self.maker[op.outputs[0]], operand
            op = self.graph.operators[before]


def _late(graph: Graph) -> frozenset[int]:
    """Return what follows from dense products and loops."""
    late: set[int] = set()
    for op in graph.operators:
        if op.heavy or op.bodies or not late.isdisjoint(op.inputs):
            late.update(op.outputs)
    return frozenset(late)


class _Following(NamedTuple):
    """What follows from tensors: the operators in their order, and all tensors with the first."""

    operators: Sequence[int]
    tensors: frozenset[int]


def _after(
    graph: Graph, readers: Mapping[int, Sequence[int]], tensors: Collection[int]
) -> _Following:
    """Return what follows from tensors."""
    found, operators, todo = set(tensors), set[int](), list(tensors)
    while todo:
        for i in readers.get(todo.pop(), ()):
            if i not in operators:
                operators.add(i)
                new = set(graph.operators[i].outputs) - found
                found |= new
                todo += new
    return _Following(sorted(operators), frozenset(found))


def _readers(graph: Graph) -> dict[int, list[int]]:
    """Return for each tensor the operators that read it."""
    found: dict[int, list[int]] = {}
    for i, op in enumerate(graph.operators):
        for t in dict.fromkeys(op.inputs):
            found.setdefault(t, []).append(i)
    return found


def _is_repeated(op: Operator) -> bool:
    """Return whether readers compute a result again, element by element, or read it elsewhere."""
    return is_light(op) and all(loop.kind == "parallel" for loop in op.rule.loops)


def crossing_s(num_bytes: float, device: DeviceSpec) -> float:
    """Return the seconds in which bytes come from the host and go back to it.

    Args:
        num_bytes: Bytes of one device.
        device: The device; how fast it reaches the memory of its host is known.
    """
    return 2 * num_bytes / device.host_bytes_per_s


def bytes_in_host(
    graph: Graph,
    decision: GraphDecision,
    mesh: LogicalMesh,
    positions: Collection[int] | None = None,
) -> int:
    """Return the bytes of inputs of one device that stay in the memory of its host.

    Args:
        graph: The graph.
        decision: Its decision.
        mesh: Where it runs.
        positions: Which inputs; by default all that the decision leaves there.
    """
    found = 0
    for i in decision.in_host if positions is None else positions:
        tensor = graph.tensors[graph.inputs[i]]
        shape = local_shape(tensor.shape, decision.inputs[i], mesh.sizes)
        found += math.prod(shape) * tensor.itemsize
    return found


def bytes_on_device(graph: Graph, decision: GraphDecision, mesh: LogicalMesh) -> int:
    """Return the bytes of inputs of one device that stay on the device.

    Args:
        graph: The graph.
        decision: Its decision.
        mesh: Where it runs.
    """
    everywhere = bytes_in_host(graph, decision, mesh, range(len(graph.inputs)))
    return everywhere - bytes_in_host(graph, decision, mesh)


def host_transfer_s(graph: Graph, decision: GraphDecision, mesh: LogicalMesh) -> float:
    """Return the seconds of a step in which state crosses between hosts and devices.

    Args:
        graph: The graph.
        decision: Its decision.
        mesh: Where it runs.
    """
    if not decision.in_host:
        return 0.0
    return crossing_s(bytes_in_host(graph, decision, mesh), mesh.device)
