"""Peak memory of one device for a decided graph: what XLA would keep, in the order it would take.

Arguments are counted for the whole step (the caller holds them; the state that a step returns
takes the place of the donated one; other results have a place of their own).  On top lies the heap
of the values that are not fused, live from their making to their last use, in the order of XLA's
memory scheduler.  A body runs while what is live around it stays; of the bodies of one operator the
largest counts.

The parts: `emitted` (the program of one device), `ynnpack` and `stored` (what gets a buffer),
`fusion` (what runs), `order` (when), `result_places` and `placement` (where).

Source: DESIGN decision 9; docs/xla_cpu.md section 3.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from meshwise.cluster.mesh import LogicalMesh
from meshwise.graph.graph import Graph
from meshwise.intra.emitted import emitted, emitted_body
from meshwise.intra.fusion import Instructions, instructions
from meshwise.intra.order import Inner, Sizes, scheduled_peak
from meshwise.intra.placement import heap_bytes
from meshwise.intra.result_places import beside_results
from meshwise.intra.values import Values
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
        end: Last time, as the operators stand in the program.
        num_bytes: On one device.
        role: `input`, `value` or `copy`.
        where: Source line of the operator that makes it, or the name of the input.
    """

    path: tuple[int, ...]
    tensor: int
    start: int
    end: int
    num_bytes: int
    role: str
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """Where memory is highest.

    Attributes:
        num_bytes: Bytes that one device needs, gaps of the heap included.
        time: Position of the operator at which most is live; before it, for each operator around,
            its position and the number of its body.
        buffers: What is live then, largest first.
    """

    num_bytes: int
    time: tuple[int, ...]
    buffers: tuple[Buffer, ...]


def _highest(
    graph: Graph,
    decision: GraphDecision,
    mesh: LogicalMesh,
    values: Values,
    path: tuple[int, ...],
) -> tuple[Peak, Inner]:
    """Temporaries and results of one graph: what is live at its peak, and all lifetimes."""
    program = instructions(values)
    # Results that overwrite no argument have a place of their own, outside of the heap.
    apart = () if values.is_body else _not_donated(program)
    program = replace(program, apart=frozenset(apart))
    place = {v: i for i, v in enumerate(program.value)}
    bodies: dict[int, tuple[int, Peak, Inner]] = {}
    for v, time in values.loops.items():
        if v not in place:
            continue
        op, chosen = graph.operators[time], decision.operators[time]
        for p, (body, decided) in enumerate(zip(op.bodies, chosen.bodies, strict=True)):
            assert op.structure is not None
            values_inside = emitted_body(body, decided, mesh, op.structure, p)
            found_inside = _highest(body, decided, mesh, values_inside, (*path, time, p))
            known = bodies.get(place[v])
            if known is None or found_inside[1].num_bytes > known[2].num_bytes:
                bodies[place[v]] = (p, *found_inside)
    sizes = Sizes(buffer=values.num_bytes, inner={i: b[2] for i, b in bodies.items()})
    top = scheduled_peak(program, sizes)
    inside = Inner(
        num_bytes=top.num_bytes,
        lifetimes=beside_results(top.lifetimes, top.results),
        num_steps=top.num_steps,
    )
    if top.instruction < 0:
        return Peak(num_bytes=0, time=(0,), buffers=()), inside
    last = _last_uses(program, values)
    found = [
        _buffer(graph, values, b, last.get(b, values.time[b]), path) for b in (*top.buffers, *apart)
    ]
    number, body_peak, _ = bodies.get(top.instruction, (0, None, None))
    time = max(values.time[program.value[top.instruction]], 0)
    highest = Peak(
        num_bytes=top.num_bytes + sum(values.num_bytes[b] for b in apart),
        time=(time, *((number, *body_peak.time) if body_peak else ())),
        buffers=(*found, *(body_peak.buffers if body_peak else ())),
    )
    return highest, inside


def _not_donated(program: Instructions) -> tuple[int, ...]:
    made = {b for defined in program.defines for b in defined}
    return tuple(b for b in program.live_out if b in made and b not in program.over_input)


def _last_uses(program: Instructions, values: Values) -> dict[int, int]:
    last: dict[int, int] = {}
    for v, reads in zip(program.value, program.reads, strict=True):
        for b in reads:
            last[b] = max(last.get(b, -1), values.time[v])
    return last


def _buffer(graph: Graph, values: Values, b: int, end: int, path: tuple[int, ...]) -> Buffer:
    tensor, time = values.tensor[b], values.time[b]
    is_input = time < 0
    where = graph.tensors[tensor].name
    if not is_input and time < len(graph.operators):
        op = graph.operators[time]
        where = op.where or op.kind
    return Buffer(
        path=path,
        tensor=tensor,
        start=time,
        end=end,
        num_bytes=values.num_bytes[b],
        role="copy" if values.is_copy[b] else "input" if is_input else "value",
        where=where,
    )


def peak(graph: Graph, decision: GraphDecision, mesh: LogicalMesh) -> Peak:
    """The highest point of a whole program, bodies included."""
    values = emitted(graph, decision, mesh)
    top, inside = _highest(graph, decision, mesh, values, ())
    # XLA's heap in place of what is live at once.  Inside of loops it may run a greedy order.
    heap = heap_bytes(inside.lifetimes, is_sure=not values.loops)
    temporary = top.num_bytes - inside.num_bytes + heap
    end = len(graph.operators)
    arguments = [_buffer(graph, values, b, end, ()) for b in range(len(graph.inputs))]
    everything = sorted((*arguments, *top.buffers), key=lambda b: (-b.num_bytes, b.path, b.tensor))
    held = sum(b.num_bytes for b in arguments) + _POINTER_BYTES * len(graph.outputs)
    return Peak(num_bytes=held + temporary, time=top.time, buffers=tuple(everything))


def peak_bytes(
    graph: Graph, decision: GraphDecision, mesh: LogicalMesh
) -> tuple[int, tuple[Buffer, ...]]:
    """Peak bytes of one device and what is live then, largest first."""
    found = peak(graph, decision, mesh)
    return found.num_bytes, found.buffers
