"""Small random problems, and their optimum by trying everything."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from meshwise.assignment.engine import solve_encoded
from meshwise.assignment.files.reader import read_instance
from meshwise.assignment.instance import INFINITE_COST, Instance, evaluate
from meshwise.assignment.problem import Problem, Solution
from meshwise.assignment.solve import solve

Document = dict[str, Any]


def parse_instance(document: object, source: str) -> Instance:
    """The problem of a JSON document, by way of a file of this name."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / source
        path.write_text(json.dumps(document))
        return read_instance(path)


def random_document(
    seed: int, *, num_nodes: int = 6, tight: float | None = 0.4, forbid: bool = True
) -> Document:
    """A problem in the contest's form.

    Args:
        seed: Of the random numbers.
        num_nodes: Nodes of 1 to 4 choices.
        tight: Where the limit lies between the least and the largest peak; None for no limit.
        forbid: Whether edges may forbid pairs of choices.
    """
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 5, num_nodes)
    costs = [rng.integers(0, 50, k).tolist() for k in sizes]
    usages = [rng.integers(0, 20, k).tolist() for k in sizes]
    intervals = np.sort(rng.integers(0, 8, (num_nodes, 2)), axis=1).tolist()
    edges, edge_costs = [], []
    for _ in range(int(rng.integers(0, 2 * num_nodes))):
        u, v = rng.choice(num_nodes, 2, replace=False).tolist()
        matrix = rng.integers(0, 40, (sizes[u], sizes[v]))
        kind = rng.integers(4) if forbid else 3
        if kind == 0:
            # Where one follows the other most pairs are forbidden.
            image = rng.integers(0, sizes[v], sizes[u])
            matrix[np.arange(sizes[v])[None, :] != image[:, None]] = INFINITE_COST
        elif kind == 1:
            matrix[rng.random(matrix.shape) < 0.2] = 3 * INFINITE_COST
        elif kind == 2:
            matrix = rng.integers(0, 9, (sizes[u], 1)) + rng.integers(0, 9, (1, sizes[v]))
        edges.append([u, v])
        edge_costs.append(matrix.ravel().tolist())
    nodes = {"intervals": intervals, "costs": costs, "usages": usages}
    document = _document(f"random {seed}", nodes, {"nodes": edges, "costs": edge_costs})
    if tight is not None:
        free = parse_instance(document, "random")
        least = evaluate(free, [int(np.argmin(u)) for u in usages]).peak
        most = evaluate(free, [int(np.argmax(u)) for u in usages]).peak
        document["problem"]["usage_limit"] = int(least + tight * (most - least))
    return document


def _document(name: str, nodes: Document, edges: Document) -> Document:
    return {"problem": {"name": name, "nodes": nodes, "edges": edges}}


def planted_instance(
    seed: int, *, num_nodes: int, num_edges: int, forbidden: float, room: float = 1.0
) -> Instance:
    """A problem with many forbidden pairs, of which one solution is known to exist.

    Args:
        seed: Of the random numbers.
        num_nodes: Nodes of 3 to 6 choices.
        num_edges: Edges between near nodes.
        forbidden: Share of pairs that edges forbid.
        room: Limit in peaks of the hidden solution.
    """
    rng = np.random.default_rng(seed)
    sizes = rng.integers(3, 7, num_nodes)
    hidden = [int(rng.integers(k)) for k in sizes]
    costs = [rng.integers(0, 1000, k).tolist() for k in sizes]
    usages = [rng.integers(0, 1000, k).tolist() for k in sizes]
    begin = np.arange(num_nodes)
    intervals = np.stack([begin, begin + rng.integers(1, 40, num_nodes)], axis=1).tolist()
    edges, edge_costs = [], []
    for _ in range(num_edges):
        u = int(rng.integers(num_nodes - 1))
        v = min(u + int(rng.integers(1, 20)), num_nodes - 1)
        matrix = rng.integers(0, 1000, (sizes[u], sizes[v]))
        matrix[rng.random(matrix.shape) < forbidden] = INFINITE_COST
        matrix[hidden[u], hidden[v]] = rng.integers(0, 1000)
        edges.append([u, v])
        edge_costs.append(matrix.ravel().tolist())
    nodes = {"intervals": intervals, "costs": costs, "usages": usages}
    document = _document(f"planted {seed}", nodes, {"nodes": edges, "costs": edge_costs})
    peak = evaluate(parse_instance(document, "planted"), hidden).peak
    document["problem"]["usage_limit"] = int(room * peak)
    return parse_instance(document, "planted")


def deaf_instance() -> Instance:
    """HiGHS begins quickly with it, and then looks at nothing for longer than a test may take."""
    rng, size, count = np.random.default_rng(0), 10, 100
    pairs = [[u, (u + k) % count] for u in range(count) for k in (1, 7, 31, 50)]
    nodes = {
        "intervals": [[0, 1]] * count,
        "costs": rng.integers(0, 1000, (count, size)).tolist(),
        "usages": rng.integers(0, 1000, (count, size)).tolist(),
    }
    matrices = rng.integers(0, 1000, (len(pairs), size**2)).tolist()
    document = _document("deaf", nodes, {"nodes": pairs, "costs": matrices})
    document["problem"]["usage_limit"] = 400 * count
    return parse_instance(document, "deaf")


def random_instance(seed: int, **options: Any) -> Instance:
    """The same, read."""
    return parse_instance(random_document(seed, **options), "random")


def proved(problem: Problem) -> Solution:
    """The answer of a planner's problem; `solve` proves none with a row."""
    if problem.rows:
        return solve_encoded(problem, incumbent=None, time_limit_s=600, seed=0)
    return solve(problem)


def optimum(instance: Instance) -> int | None:
    """Least cost within the limit by trying every choice, all at once; None if there is none."""
    sizes: list[int] = np.diff(instance.first_choice).tolist()
    # One column for each choice.
    every = np.indices(sizes).reshape(len(sizes), math.prod(sizes))
    taken = every + instance.first_choice[:-1, None]
    parts = list(instance.costs[taken])
    for (u, v), first in zip(instance.edges.tolist(), instance.first_entry, strict=False):
        parts.append(instance.edge_costs[first + every[u] * sizes[v] + every[v]])
    is_known = np.ones(every.shape[1], bool)
    cost = np.zeros(every.shape[1], np.int64)
    for part in parts:
        is_known &= part < INFINITE_COST
        cost += np.where(part < INFINITE_COST, part, 0)
    # Else 64 bits may not hold a sum.
    assert sum(int(p.max(initial=0, where=p < INFINITE_COST)) for p in parts) < 2**63
    if instance.limit is not None:
        used, (begin, end) = instance.usages[taken], instance.intervals.T
        for time in begin:
            is_known &= used[(begin <= time) & (time < end)].sum(axis=0) <= instance.limit
    if not is_known.any():
        return None
    best = int(np.flatnonzero(is_known)[cost[is_known].argmin()])
    found = evaluate(instance, every[:, best].tolist())
    assert found.cost == cost[best]
    assert instance.limit is None or found.peak <= instance.limit
    return found.cost
