"""Problems whose memory binds nearly everywhere: `python -m benchmarks.tight_instances DIR`.

Some are those of DIR (`*.json.gz`) with a lower limit; the others are generated.  A limit is a
multiple of the least need: the largest sum, at any time, of the least usage of each live node.  A
run whose own bound is within 3 % of its cost needs no longer run to compare with: no run, however
long, is better than the bound.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.record import write_record
from benchmarks.solver import solved
from meshwise.assignment.files.reader import read_instance
from meshwise.assignment.files.writer import write_instance
from meshwise.assignment.instance import INFINITE_COST, Instance, evaluate

# Limits as multiples of the least need: for each file of DIR, and for the generated ones in turn.
_FILE_LIMITS = (1.01, 1.05)
_GENERATED_LIMITS = (1.01, 1.02, 1.03, 1.05, 1.07, 1.1)
_GENERATED = 12
_LEAST_NODES = 10_000


def main() -> None:
    """Solve each problem once; one line of JSON for each, and a record."""
    name = "python -m benchmarks.tight_instances"
    parser = argparse.ArgumentParser(prog=name, description=__doc__)
    parser.add_argument("folder", type=Path, help="instances of at least 10,000 nodes")
    parser.add_argument("--time-limit", type=float, default=60, metavar="S", help="of each run")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME", help="of the problems")
    parser.add_argument("--seed", type=int, default=0, help="of each run (default 0)")
    parser.add_argument("--out", type=Path, default=Path("bench-out"), help="folder for JSON")
    args = parser.parse_args()
    runs: list[dict[str, Any]] = []
    for instance, factor in _instances(args.folder):
        if not args.only or instance.name in args.only:
            runs.append(_run(instance, factor, args.time_limit, args.seed))
            print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
    print(write_record(args.out, "tight_instances", {"runs": runs}))


def _instances(folder: Path) -> Iterator[tuple[Instance, float]]:
    for path in sorted(folder.glob("*.json.gz")):
        given = read_instance(path)
        if given.num_nodes >= _LEAST_NODES:
            for factor in _FILE_LIMITS:
                yield tightened(given, factor), factor
    for seed in range(_GENERATED):
        factor = _GENERATED_LIMITS[seed % len(_GENERATED_LIMITS)]
        yield tightened(training_step(seed), factor), factor


def _run(instance: Instance, factor: float, limit_s: float, seed: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "problem.json"
        write_instance(instance, path)
        data = solved(path, limit_s, seed)
    found = evaluate(instance, data["choice"]) if data["choice"] else None
    cost, bound = found and found.cost, data["bound"]
    return {
        "name": instance.name,
        "nodes": instance.num_nodes,
        "edges": len(instance.edges),
        "limit / least need": factor,
        "seconds": limit_s,
        "cost": cost,
        "bound": bound,
        "cost / bound": cost / bound if cost and bound else None,
        "status": data["status"],
    }


def least_need(instance: Instance) -> int:
    """Return the largest sum, at any time, of the least usage of each live node, in bytes."""
    least = np.minimum.reduceat(instance.usages, instance.first_choice[:-1])
    begin, end = instance.intervals.T
    live = begin < end
    change = np.zeros(int(instance.intervals.max()) + 1, dtype=np.int64)
    np.add.at(change, begin[live], least[live])
    np.subtract.at(change, end[live], least[live])
    return int(np.cumsum(change).max())


def tightened(instance: Instance, factor: float) -> Instance:
    """Return the problem with a limit of `factor` times its least need."""
    name = f"{instance.name} at {factor}"
    return replace(instance, name=name, limit=int(least_need(instance) * factor))


@dataclass(frozen=True, slots=True)
class _Nodes:
    """Nodes as they are drawn: what each is about.

    Attributes:
        bytes: Of the tensor of each node, whole.
        layouts: Number of layouts that each may have; the last one splits most.
        intervals: When each is live.
    """

    bytes: np.ndarray
    layouts: np.ndarray
    intervals: np.ndarray


def training_step(seed: int) -> Instance:
    """Generate a problem like that of a training step: layers forward, and backward in mirror.

    A node's choices are layouts that split its tensor by 1, 2, 4, ... or by the same factor in
    another dim; two operators pay for a change of layout between them; three in ten follow another
    exactly.  Residuals live until their layer's backward pass, weights always.  A few nodes, as a
    mask or a shared table, have edges to hundreds.  Choices are in random order.

    Args:
        seed: Of all that is random, the number of layers too.

    Returns:
        A problem without a limit, whose choices of least usage are allowed together.
    """
    rng = np.random.default_rng(seed)
    per_layer = int(rng.integers(20, 60))
    layers = _LEAST_NODES // (2 * per_layer) + int(rng.integers(10, 80))
    half = layers * per_layer
    count = 2 * half
    nodes = _drawn_nodes(rng, count, half)
    edges = _drawn_edges(rng, count, half, per_layer)
    order = [rng.permutation(n) for n in nodes.layouts]
    first = np.concatenate([[0], np.cumsum(nodes.layouts)])
    costs, usages = [], []
    for size, layouts, places in zip(nodes.bytes, nodes.layouts, order, strict=True):
        # The last one uses least, by a little.
        split = 2.0 ** np.minimum(np.arange(layouts), 3) + np.arange(layouts) / 16
        work = size * rng.uniform(0.5, 4) / split + size * rng.uniform(0, 1.5, layouts)
        costs.append(work.astype(np.int64)[places])
        usages.append((size / split).astype(np.int64)[places])
    matrices = []
    distance = rng.uniform(0.2, 2, (16, 16))
    np.fill_diagonal(distance, 0)
    follows = rng.random(len(edges)) < 0.3
    for (u, v), follow in zip(edges, follows, strict=True):
        matrices.append(_changes(rng, nodes, order, distance, int(u), int(v), bool(follow)))
    return Instance(
        name=f"generated-{seed}",
        first_choice=first.astype(np.int64),
        costs=np.concatenate(costs),
        usages=np.concatenate(usages),
        intervals=nodes.intervals,
        edges=edges,
        first_entry=np.concatenate([[0], np.cumsum([m.size for m in matrices])]).astype(np.int64),
        edge_costs=np.concatenate(matrices),
        limit=None,
    )


def _drawn_nodes(rng: np.random.Generator, count: int, half: int) -> _Nodes:
    place = np.arange(count)
    mirror = count - place
    short = place + 1 + rng.integers(0, 40, count)
    kind = rng.random(count)
    end = np.where((kind < 0.4) & (place < half), mirror, np.minimum(short, count))
    weight = kind > 0.85
    begin = np.where(weight, 0, place)
    end = np.where(weight, count, np.maximum(end, begin + 1))
    return _Nodes(
        bytes=np.exp(rng.normal(13, 1.5, count)).astype(np.int64) + 4096,
        layouts=rng.integers(3, 12, count),
        intervals=np.stack([begin, end], axis=1).astype(np.int64),
    )


def _drawn_edges(rng: np.random.Generator, count: int, half: int, per_layer: int) -> np.ndarray:
    """A chain, uses within a layer, residuals to their mirror, and hubs."""
    place = np.arange(1, count)
    pairs = [np.stack([place - 1, place], axis=1)]
    near = place - rng.integers(1, per_layer, count - 1)
    pairs.append(np.stack([near, place], axis=1)[near >= 0])
    kept = np.flatnonzero(rng.random(half) < 0.4)
    pairs.append(np.stack([kept, count - 1 - kept], axis=1))
    for hub in rng.integers(0, count, int(rng.integers(2, 8))):
        others = rng.choice(count, int(rng.integers(100, 1700)), replace=False)
        pairs.append(np.stack([np.full(len(others), hub), others], axis=1))
    edges = np.concatenate(pairs)
    edges = np.sort(edges[edges[:, 0] != edges[:, 1]], axis=1)
    return np.unique(edges, axis=0).astype(np.int64)


def _changes(
    rng: np.random.Generator,
    nodes: _Nodes,
    order: list[np.ndarray],
    distance: np.ndarray,
    u: int,
    v: int,
    follow: bool,
) -> np.ndarray:
    """The matrix of an edge, flat; the layouts that split most always go together."""
    rows, columns = int(nodes.layouts[u]), int(nodes.layouts[v])
    size = min(nodes.bytes[u], nodes.bytes[v])
    cost = (size * distance[:rows, :columns]).astype(np.int64)
    if follow and rows == columns:
        cost[~np.eye(rows, dtype=bool)] = INFINITE_COST
    else:
        cost[rng.random(cost.shape) < 0.05] = INFINITE_COST
    cost[-1, -1] = 0
    return cost[order[u]][:, order[v]].ravel()


if __name__ == "__main__":
    main()
