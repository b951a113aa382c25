"""What a backward pass keeps of its forward pass: the cheapest border, by brute force."""

from __future__ import annotations

import itertools
import random

import pytest

from doubles.graph_builders import Builder
from meshwise.graph.graph import Graph
from meshwise.pieces.residuals import ancestors, kept_between


def random_case(seed: int) -> tuple[Graph, frozenset[int], frozenset[int], frozenset[int]]:
    """A forward pass with products, reductions and element-wise steps, and what is read of it."""
    rng = random.Random(seed)
    g = Builder()
    made = [g.input(4, 4, name="x"), g.input(4, 4, name="w")]
    g.zeros(4, 4)
    for _ in range(rng.randint(3, 9)):
        kind = rng.choice(("dot", "exp", "exp", "mul", "mul", "sum", "spread"))
        wide = [t for t in made if g.shape(t) == (4, 4)]
        narrow = [t for t in made if g.shape(t) == (4,)]
        match kind:
            case "dot":
                made.append(g.dot(rng.choice(wide), rng.choice(wide)))
            case "exp":
                made.append(g.elementwise("exp", rng.choice(made)))
            case "mul":
                made.append(g.elementwise("mul", rng.choice(wide), rng.choice(wide)))
            case "sum":
                made.append(g.reduce(rng.choice(wide), 1))
            case _ if narrow:
                made.append(g.broadcast(rng.choice(narrow), (4, 4), (0,)))
            case _:
                pass
    wanted = frozenset(rng.sample(made, rng.randint(1, min(4, len(made)))))
    graph = g.graph(made[-1:])
    return graph, ancestors(graph, made), wanted, frozenset([made[1]])


def is_enough(graph: Graph, kept: set[int], wanted: frozenset[int], free: frozenset[int]) -> bool:
    """Whether what is wanted is there, or follows from it by element-wise steps."""
    maker = {t: op for op in graph.operators for t in op.outputs}

    def there(t: int) -> bool:
        if t in kept or t in free or graph.tensors[t].generated:
            return True
        op = maker.get(t)
        if op is None or op.kind in ("dot_general", "reduce_sum"):
            return False
        return all(map(there, op.inputs))

    return all(map(there, wanted))


@pytest.mark.parametrize("seed", range(60))
def test_the_border_is_the_cheapest(seed: int) -> None:
    graph, first, wanted, free = random_case(seed)
    found = kept_between(graph, first, wanted, free)
    assert is_enough(graph, set(found.tensors), wanted, free)
    sizes = [t.num_bytes for t in graph.tensors]
    candidates = [t for t in range(len(sizes)) if not graph.tensors[t].generated]
    least = min(
        sum(sizes[t] for t in some)
        for count in range(len(wanted) + 1)
        for some in itertools.combinations(candidates, count)
        if is_enough(graph, set(some), wanted, free)
    )
    assert sum(sizes[t] for t in found.tensors) == least


@pytest.mark.parametrize("seed", range(60))
def test_what_runs_again_is_what_is_missing(seed: int) -> None:
    graph, first, wanted, free = random_case(seed)
    found = kept_between(graph, first, wanted, free)
    there = {*found.tensors, *free}
    for i in found.again:
        op = graph.operators[i]
        assert op.kind not in ("dot_general", "reduce_sum")
        assert all(t in there or graph.tensors[t].generated for t in op.inputs)
        assert there.isdisjoint(op.outputs)
        there.update(op.outputs)
    assert wanted <= there | {t for t in wanted if graph.tensors[t].generated}
