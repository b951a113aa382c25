"""Resharding within a mesh: the cheapest sequence of single collectives.

The layouts of a tensor are the nodes of a graph, the moves of `resharding.moves` its edges.  The
graph depends only on the mesh sizes and on which products of them divide which dim, so it is
built once for many tensors; the bytes of a tensor only set the weights.

Source: docs/facts.md section 1; Alpa table 2 is the special case of one move.
"""

from __future__ import annotations

import functools
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix  # pyright: ignore[reportMissingTypeStubs]
from scipy.sparse.csgraph import (  # pyright: ignore[reportMissingTypeStubs]
    dijkstra,  # pyright: ignore[reportUnknownVariableType]
)

from meshwise.cluster.collectives import collective_terms
from meshwise.cluster.device_kind import Bucket, bucket_of
from meshwise.cluster.mesh import LogicalMesh
from meshwise.errors import PlanError
from meshwise.graph.graph import Tensor
from meshwise.graph.layout import SUM, Layout, is_valid, num_parts, replicated
from meshwise.resharding.moves import FREE, Move, moves

NOTHING: frozenset[str] = frozenset()
# Paths whose prices differ by less than rounding (an all-reduce, and the reduce-scatter and
# all-gather that it consists of) count as equal, so that the one with fewer steps is taken.
ROUNDING = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class ReshardingStep:
    """One step of a path.

    Attributes:
        kind: `all-gather`, `reduce-scatter`, `all-reduce`, `all-to-all`, `permute`, or the free
            local steps `slice` and `mask`.
        axes: Mesh axes of the group; for gather and permute in the order in which they split the
            dim before the step, major to minor.
        dim: Dim that is gathered, scattered, sliced, reordered or left; -1 if none is.
        to_dim: For all-to-all the dim that the axis splits afterwards; else -1.
        layout: Layout after the step.
        num_bytes: B of docs/facts.md section 1; 0 for slice and mask.
        group_size: Devices in one group.
        monoid: The monoid of a reduction or mask; else empty.
    """

    kind: str
    axes: tuple[int, ...]
    dim: int
    to_dim: int
    layout: Layout
    num_bytes: int
    group_size: int
    monoid: str


@dataclass(frozen=True, slots=True)
class _StateGraph:
    """Layouts and moves between them; edge arrays are sorted by source node."""

    nodes: tuple[Layout, ...]
    index: dict[Layout, int]
    moves: tuple[Move, ...]
    heads: NDArray[np.int32]
    starts: NDArray[np.int32]
    parts: NDArray[np.int64]


def group_parts(move: Move, before: Layout, sizes: Sequence[int]) -> int:
    """Return into how many parts the axes outside of the group split the tensor: B = M / parts."""
    inside = math.prod(sizes[a] for axes in before.dims for a in axes if a in move.axes)
    return num_parts(before, sizes) // inside


@functools.lru_cache(maxsize=256)
def _state_graph(
    units: tuple[int, ...], sizes: tuple[int, ...], monoids: tuple[str, ...]
) -> _StateGraph:
    """Return all layouts of a tensor, with partial sums and partials of the other `monoids`."""
    start = replicated(len(units))
    found: dict[Layout, list[Move]] = {}
    queue = deque((start,))
    while queue:
        layout = queue.popleft()
        if layout in found:
            continue
        found[layout] = list(moves(layout, units, sizes))
        queue.extend(move.layout for move in found[layout])
    for monoid in monoids:
        for layout in [known for known in found if known.monoid == SUM]:
            other = layout._replace(monoid=monoid)
            found[other] = list(moves(other, units, sizes))
    index = {layout: i for i, layout in enumerate(found)}
    edges = [(before, move) for before, out in found.items() for move in out]
    counts = [len(out) for out in found.values()]
    return _StateGraph(
        nodes=tuple(found),
        index=index,
        moves=tuple(move for _, move in edges),
        heads=np.array([index[move.layout] for _, move in edges], dtype=np.int32),
        starts=np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
        parts=np.array([group_parts(m, before, sizes) for before, m in edges], dtype=np.int64),
    )


class _Problem(NamedTuple):
    """What the price of every path of a tensor depends on.

    Attributes:
        units: For each dim what matters of its size, see `_units`.
        monoids: Monoids of partial layouts besides the sum.
        mesh: The logical mesh.
        forbid: Kinds of collectives that may not be used.
        bucket: The bucket in which its collectives are sent; None if they run alone.
    """

    units: tuple[int, ...]
    monoids: tuple[str, ...]
    mesh: LogicalMesh
    forbid: frozenset[str]
    bucket: Bucket | None

    @property
    def graph(self) -> _StateGraph:
        """Layouts and moves."""
        return _state_graph(self.units, self.mesh.sizes, self.monoids)


@functools.lru_cache(maxsize=256)
def _edge_terms(problem: _Problem) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return latency and seconds a byte of B, shape (ways, edges); inf if forbidden."""
    forbid = problem.forbid
    edges = problem.graph.moves
    most = 4 if problem.bucket else 2
    latency_s = np.full((most, len(edges)), np.inf)
    seconds_per_byte = np.zeros((most, len(edges)))
    for i, move in enumerate(edges):
        if move.kind in forbid:
            continue
        if move.kind in FREE:
            latency_s[0, i] = 0.0
            continue
        axes = tuple(problem.mesh.axes[a] for a in move.axes)
        terms = collective_terms(move.kind, axes, problem.bucket)
        for way, term in enumerate(terms):
            latency_s[way, i], seconds_per_byte[way, i] = term
    return latency_s, seconds_per_byte


@functools.lru_cache(maxsize=4096)
def _weights(problem: _Problem, num_bytes: int) -> NDArray[np.float64]:
    """Return the seconds of each edge for a tensor of `num_bytes`."""
    latency_s, seconds_per_byte = _edge_terms(problem)
    group_bytes = (num_bytes // problem.graph.parts).astype(np.float64)
    return np.min(latency_s + seconds_per_byte * group_bytes, axis=0)


@functools.lru_cache(maxsize=1024)
def _distances(problem: _Problem, num_bytes: int) -> NDArray[np.float64]:
    """Return the seconds between all pairs of layouts."""
    graph, count = problem.graph, len(problem.graph.nodes)
    weights = _weights(problem, num_bytes)
    matrix = csr_matrix((weights, graph.heads, graph.starts), shape=(count, count))
    return cast(NDArray[np.float64], dijkstra(matrix))


def _units(shape: Sequence[int], mesh: LogicalMesh) -> tuple[int, ...]:
    """Return what matters of a shape: which products of mesh sizes divide each dim."""
    return tuple(math.gcd(size, mesh.num_devices) for size in shape)


def _other_monoids(layouts: Sequence[Layout]) -> tuple[str, ...]:
    return tuple(sorted({layout.monoid for layout in layouts} - {"", SUM}))


def _check(layout: Layout, shape: Sequence[int], mesh: LogicalMesh) -> None:
    if not is_valid(layout, shape, mesh.sizes):
        raise PlanError(
            f"{layout} is not a layout of a tensor of shape {tuple(shape)} on a mesh of sizes "
            f"{mesh.sizes}: an axis may be used once only and must divide the dim that it splits"
        )


def cost_matrix(
    shape: Sequence[int],
    itemsize: int,
    srcs: Sequence[Layout],
    dsts: Sequence[Layout],
    mesh: LogicalMesh,
    *,
    forbid: frozenset[str] = NOTHING,
    sharers: int = 0,
) -> NDArray[np.float64]:
    """Return the seconds to reshard one tensor from each of `srcs` to each of `dsts`.

    Args:
        shape: Shape of the whole tensor.
        itemsize: Bytes of one element.
        srcs: Layouts to start from.
        dsts: Layouts to reach.
        mesh: The logical mesh.
        forbid: Kinds of collectives that may not be used; how one of another kind goes over several
            axes is left to it.
        sharers: Tensors whose collectives compilers merge with its own; 0 if those run alone.

    Returns:
        Shape (len(srcs), len(dsts)); inf where no path exists.

    Raises:
        PlanError: a layout does not fit the shape and the mesh.
    """
    bucket = bucket_of(mesh.device, sharers)
    problem = _Problem(_units(shape, mesh), _other_monoids((*srcs, *dsts)), mesh, forbid, bucket)
    index = problem.graph.index
    for layout in (*srcs, *dsts):
        if layout not in index:
            _check(layout, shape, mesh)
    distances = _distances(problem, math.prod(shape) * itemsize)
    rows = np.array([index[layout] for layout in srcs], dtype=np.intp)
    columns = np.array([index[layout] for layout in dsts], dtype=np.intp)
    return distances[np.ix_(rows, columns)]


@functools.lru_cache(maxsize=8192)
def _parents(problem: _Problem, num_bytes: int, source: int) -> tuple[tuple[int, int], ...]:
    """Return for each node the node before it and the edge to it, on the path of fewest steps.

    Only edges on which the distances are tight, up to rounding, are walked, breadth first in the
    order of moves.
    """
    graph = problem.graph
    weights = _weights(problem, num_bytes)
    distance = _distances(problem, num_bytes)[source]
    limit = np.where(np.isfinite(distance), distance * (1 + ROUNDING), -np.inf)
    parents = [(-1, -1)] * len(graph.nodes)
    parents[source] = (source, -1)
    queue = deque((source,))
    while queue:
        node = queue.popleft()
        for edge in range(int(graph.starts[node]), int(graph.starts[node + 1])):
            head = int(graph.heads[edge])
            time_s = distance[node] + weights[edge]
            if parents[head][0] < 0 and time_s <= limit[head]:
                parents[head] = (node, edge)
                queue.append(head)
    return tuple(parents)


def path(
    shape: Sequence[int],
    itemsize: int,
    src: Layout,
    dst: Layout,
    mesh: LogicalMesh,
    *,
    sharers: int = 0,
) -> tuple[ReshardingStep, ...]:
    """Return the cheapest steps from `src` to `dst`; of equally cheap paths the shortest.

    Args:
        shape: Shape of the whole tensor.
        itemsize: Bytes of one element.
        src: Layout to start from.
        dst: Layout to reach.
        mesh: The logical mesh.
        sharers: Tensors whose collectives compilers merge with its own; 0 if those run alone.

    Raises:
        PlanError: a layout does not fit, or `dst` cannot be reached.
    """
    _check(src, shape, mesh)
    _check(dst, shape, mesh)
    bucket = bucket_of(mesh.device, sharers)
    problem = _Problem(_units(shape, mesh), _other_monoids((src, dst)), mesh, NOTHING, bucket)
    graph = problem.graph
    num_bytes = math.prod(shape) * itemsize
    source, node = graph.index[src], graph.index[dst]
    parents = _parents(problem, num_bytes, source)
    if parents[node][0] < 0:
        raise PlanError(f"no resharding leads from {src} to {dst} (shape {tuple(shape)})")
    steps: list[ReshardingStep] = []
    while node != source:
        node, edge = parents[node]
        move = graph.moves[edge]
        free = move.kind in FREE
        steps.append(
            ReshardingStep(
                kind=move.kind,
                axes=move.axes,
                dim=move.dim,
                to_dim=move.to_dim,
                layout=move.layout,
                num_bytes=0 if free else num_bytes // int(graph.parts[edge]),
                group_size=math.prod(mesh.sizes[a] for a in move.axes),
                monoid=move.monoid,
            )
        )
    return tuple(reversed(steps))


def tensor_path(
    tensor: Tensor, src: Layout, dst: Layout, mesh: LogicalMesh
) -> tuple[ReshardingStep, ...]:
    """Return `path` for a tensor of a graph.

    Args:
        tensor: The tensor.
        src: Layout to start from.
        dst: Layout to reach.
        mesh: The logical mesh.

    Raises:
        PlanError: a layout does not fit, or `dst` cannot be reached.
    """
    return path(tensor.shape, tensor.itemsize, src, dst, mesh, sharers=tensor.sharers)
