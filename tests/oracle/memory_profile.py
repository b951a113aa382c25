"""Memory over the program order: the part of memory that is linear in the choices.

`memory.peak` says what XLA will really hold, in XLA's own order; no row of a linear program can
say that.  This profile takes the operators in program order and counts every value from its
making to its last use; `intra.limit.memory_rows` writes the same as rows, and `intra.limit.fit`
joins the two.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshwise.cluster.mesh import LogicalMesh
from meshwise.graph.graph import Graph
from meshwise.graph.layout import Layout
from meshwise.intra.shapes import local_bytes
from meshwise.memory.liveness import Liveness, liveness
from meshwise.memory.peak import Buffer, Peak
from meshwise.plan.decision import GraphDecision, Use


def _copies(
    graph: Graph, decision: GraphDecision
) -> dict[tuple[int, int, Layout, Layout | None], tuple[int, int]]:
    """First and last use of each copy: (tensor, group, via, None or the final layout)."""
    spans: dict[tuple[int, int, Layout, Layout | None], tuple[int, int]] = {}

    def see(t: int, use: Use, time: int) -> None:
        for key in ((t, use.group, use.via, None), (t, use.group, use.via, use.layout)):
            first, _ = spans.get(key, (time, time))
            spans[key] = (first, time)

    for i, (op, chosen) in enumerate(zip(graph.operators, decision.operators, strict=True)):
        for t, use in zip(op.inputs, chosen.uses, strict=True):
            see(t, use, i)
    for t, use in zip(graph.outputs, decision.outputs, strict=True):
        see(t, use, len(graph.operators))
    return spans


def buffers(
    graph: Graph, decision: GraphDecision, mesh: LogicalMesh, path: tuple[int, ...] = ()
) -> Iterator[tuple[Buffer, int]]:
    """All buffers of one graph, bodies excepted, and the last time at which each is live."""
    sizes = mesh.sizes
    live = liveness(graph)
    end_of_time = len(graph.operators)
    defined: dict[int, Layout] = dict(zip(graph.inputs, decision.inputs, strict=True))
    where: dict[int, str] = {}
    for op, chosen in zip(graph.operators, decision.operators, strict=True):
        defined.update(zip(op.outputs, chosen.results, strict=True))
        where.update(dict.fromkeys(op.outputs, op.where or op.kind))
    donated = {graph.outputs[j]: decision.inputs[i] for i, j in graph.aliases}
    inputs = set(graph.inputs)

    def buffer(t: int, start: int, end: int, layout: Layout, role: str) -> tuple[Buffer, int]:
        tensor = graph.tensors[t]
        made = Buffer(
            path=path,
            tensor=t,
            start=start,
            num_bytes=local_bytes(tensor, layout, sizes),
            role=role,
            where=tensor.name if t in inputs else where[t],
        )
        return made, end

    for t in dict.fromkeys(graph.inputs):
        # The body of a scan reads constants where they lie outside, carries are the scan's
        # results there; its slices of xs are fused into their users.
        if not path:
            yield buffer(t, -1, end_of_time, defined[t], "input")
    for t, layout in defined.items():
        if t in inputs or t in live.fused or live.root[t] != t:
            continue
        if donated.get(t) == layout:
            continue
        yield buffer(t, live.start[t], live.end[t], layout, "value")
    for (t, _, via, layout), (start, end) in _copies(graph, decision).items():
        if graph.tensors[t].generated:
            continue
        made, source = (via, defined[t]) if layout is None else (layout, via)
        if made == source:
            continue
        if start == end_of_time and donated.get(t) == made:
            continue
        yield buffer(t, start, _copy_end(graph, live, t, end), made, "copy")


def _copy_end(graph: Graph, live: Liveness, t: int, end: int) -> int:
    """A bitcast of a copy keeps the copy alive."""
    if end < len(graph.operators):
        for u in graph.operators[end].outputs:
            if live.root[u] != u and t in graph.operators[end].inputs:
                return max(end, live.last_use_of[u])
    return end


def profile_peak(
    graph: Graph, decision: GraphDecision, mesh: LogicalMesh, path: tuple[int, ...] = ()
) -> Peak:
    """The highest point of a graph, bodies included."""
    found = list(buffers(graph, decision, mesh, path))
    change = [0] * (len(graph.operators) + 3)
    for b, end in found:
        change[b.start + 1] += b.num_bytes
        change[end + 2] -= b.num_bytes
    best, at = Peak(num_bytes=-1, buffers=()), -1
    total = 0
    for step, delta in enumerate(change[:-1]):
        total += delta
        time = step - 1
        inner: Peak | None = None
        if 0 <= time < len(graph.operators):
            op, chosen = graph.operators[time], decision.operators[time]
            for p, (body, decided) in enumerate(zip(op.bodies, chosen.bodies, strict=True)):
                found_inside = profile_peak(body, decided, mesh, (*path, time, p))
                if inner is None or found_inside.num_bytes > inner.num_bytes:
                    inner = found_inside
        here = total + (inner.num_bytes if inner else 0)
        if here > best.num_bytes:
            best, at = Peak(num_bytes=here, buffers=inner.buffers if inner else ()), time
    live = [b for b, end in found if b.start <= at <= end]
    everything = sorted((*live, *best.buffers), key=lambda b: (-b.num_bytes, b.path, b.tensor))
    return Peak(num_bytes=best.num_bytes, buffers=tuple(everything))
