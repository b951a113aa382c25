"""Peak memory of one device for a decided graph, as its target's compiler would need it.

Arguments are counted for the whole step (the caller holds them; the state that a step returns
takes the place of the donated one), and so are results that overwrite no argument.  On top lie
the values with a buffer, live from their making to their last use, in the order of the compiler;
where that lies between two orders, their mean counts, and the buffers of the lower one are named.
A body runs while what is live around it stays; of the bodies of one operator the largest counts.

Source: docs/decisions/0021; docs/xla_cpu.md section 3.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from meshwise.cluster.mesh import LogicalMesh
from meshwise.graph.graph import Graph
from meshwise.memory.live import most_live
from meshwise.memory.local_program import InstructionKind, Instructions, LocalProgram
from meshwise.memory.program import program_of_body, program_of_graph
from meshwise.memory.target import Target
from meshwise.memory.targets import memory_model_of
from meshwise.plan.decision import GraphDecision

# The results of a program are one tuple: a pointer to each. Source: docs/xla_cpu.md section 3.
_POINTER_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """One buffer while it is live.

    Attributes:
        path: For each enclosing operator its position and the number of its body.
        tensor: The value, by its id in that graph.
        start: First time at which it is live: the operator that makes it, -1 for inputs.
        num_bytes: On one device.
        role: `input`, `value` or `copy`.
        where: Source line of the operator that makes it, or the name of the input.
    """

    path: tuple[int, ...]
    tensor: int
    start: int
    num_bytes: int
    role: str
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """Where memory is highest.

    Attributes:
        num_bytes: Bytes that one device needs.
        buffers: What is live then, largest first.
        own_bytes: Most temporaries that are live at once in the program itself, or in one of its
            bodies itself.
    """

    num_bytes: int
    buffers: tuple[Buffer, ...]
    own_bytes: int = 0


def peak(
    graph: Graph,
    decision: GraphDecision,
    mesh: LogicalMesh,
    target: Target | None = None,
) -> Peak:
    """Return the highest point of a whole program, bodies included.

    Args:
        graph: The graph.
        decision: What was decided for it.
        mesh: Where it runs.
        target: Whose compiler it is for; that of the mesh's devices by default.
    """
    target = target or memory_model_of(mesh.device)
    program = program_of_graph(graph, decision, mesh, target)
    inside = _Highest(mesh, target).of_program(graph, decision, program, ())
    arguments = [_buffer(graph, program, v, ()) for v in range(len(graph.inputs))]
    buffers = sorted((*arguments, *inside.buffers), key=lambda b: (-b.num_bytes, b.path, b.tensor))
    return Peak(
        num_bytes=sum(b.num_bytes for b in arguments)
        + _POINTER_BYTES * len(graph.outputs)
        + inside.num_bytes,
        buffers=tuple(buffers),
        own_bytes=inside.own_bytes,
    )


@dataclass(frozen=True, slots=True)
class _Highest:
    """The highest point of what a program makes, arguments excepted."""

    mesh: LogicalMesh
    target: Target

    def of_program(
        self,
        graph: Graph,
        decision: GraphDecision,
        program: LocalProgram,
        path: tuple[int, ...],
    ) -> Peak:
        """Return the highest point of a graph, bodies included.

        Args:
            graph: The graph, or a body.
            decision: What was decided for it.
            program: Its program.
            path: Where the body is.
        """
        made = self.target.instructions(program)
        sizes = [value.num_bytes for value in program.values]
        bodies: dict[int, Peak] = {}
        for i, step in enumerate(made.steps):
            time = program.loops.get(step.value)
            if time is not None:
                bodies[i] = self.largest_body(graph, decision, time, path)
        # Results that overwrite no argument have a place of their own for the whole step.
        apart = frozenset[int]() if program.is_body else _apart(program, made)
        inner = {i: body.num_bytes for i, body in bodies.items()}
        tops = [
            most_live(made, sizes, apart, inner, order)
            for order in self.target.orders(made, program.values)
        ]
        top = min(tops, key=lambda found: found.num_bytes)
        if top.instruction < 0:
            return Peak(num_bytes=0, buffers=())
        buffers = [_buffer(graph, program, b, path) for b in (*top.buffers, *sorted(apart))]
        body = bodies.get(top.instruction)
        heap = statistics.fmean(self.target.heap_bytes(found) for found in self.target.likely(tops))
        own = max((top.own_bytes, *(found.own_bytes for found in bodies.values())))
        if not program.is_body:
            heap = self.target.reported_bytes(heap, own) * (1 + self.target.margin_share)
        return Peak(
            num_bytes=math.ceil(heap) + sum(sizes[b] for b in apart),
            buffers=(*buffers, *(body.buffers if body else ())),
            own_bytes=own,
        )

    def largest_body(
        self, graph: Graph, decision: GraphDecision, time: int, path: tuple[int, ...]
    ) -> Peak:
        """Return the highest point of the largest body of an operator."""
        op, chosen = graph.operators[time], decision.operators[time]
        found: list[Peak] = []
        for p, (body, decided) in enumerate(zip(op.bodies, chosen.bodies, strict=True)):
            program = program_of_body(op, chosen, p, self.mesh, self.target)
            found.append(self.of_program(body, decided, program, (*path, time, p)))
        return max(found, key=lambda body: body.num_bytes)


def _apart(program: LocalProgram, made: Instructions) -> frozenset[int]:
    defined = {b for step in made.steps for b in step.defines}
    return frozenset(b for b in made.results if b in defined and b not in program.aliases)


def _buffer(graph: Graph, program: LocalProgram, v: int, path: tuple[int, ...]) -> Buffer:
    value = program.values[v]
    where = graph.tensors[value.tensor].name
    is_input = value.kind == InstructionKind.INPUT or value.time < 0
    if not is_input and value.time < len(graph.operators):
        op = graph.operators[value.time]
        where = op.where or op.kind
    return Buffer(
        path=path,
        tensor=value.tensor,
        start=value.time,
        num_bytes=value.num_bytes,
        role="copy" if value.is_copy else "input" if is_input else "value",
        where=where,
    )
