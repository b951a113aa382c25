"""What graphs on one mesh share does not change what they cost."""

from __future__ import annotations

import numpy as np

from doubles.graph_builders import mesh, random_graph
from meshwise.intra.evaluators import Evaluators
from meshwise.intra.network import build_network
from meshwise.intra.options import IntraOptions

MESHES = (mesh(2, bandwidths=(1e6,)), mesh(2, bandwidths=(1e7,)))


def test_networks_that_share_are_those_built_alone() -> None:
    shared, options = Evaluators(), IntraOptions()
    # Each graph comes twice: the second time all its tables are known.
    for seed in (*range(12), *range(12)):
        graph = random_graph(seed, 8)
        for on in MESHES:
            mine = build_network(graph, on, options, evaluators=shared)
            alone = build_network(graph, on, options)
            for a, b in zip(mine.nodes, alone.nodes, strict=True):
                assert (a.ref, a.layouts, a.key) == (b.ref, b.layouts, b.key)
                np.testing.assert_array_equal(a.cost_s, b.cost_s)
            for a, b in zip(mine.edges, alone.edges, strict=True):
                assert (a.source, a.target, a.key) == (b.source, b.target, b.key)
                np.testing.assert_array_equal(a.cost_s, b.cost_s)
