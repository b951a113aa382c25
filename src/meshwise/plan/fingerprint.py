"""A text that two graphs share if one plan fits both."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence

from meshwise.graph.graph import Graph
from meshwise.graph.structure import Structure
from meshwise.plan.stage import Remat, Stage


def fingerprint(graph: Graph) -> str:
    """Return a hexadecimal digest of the computation; names and source lines do not enter."""
    return _digest(_lines(graph))


def joint_fingerprint(parts: Iterable[str]) -> str:
    """Return the digest of a computation in parts, from the fingerprints of the parts in order."""
    return _digest(parts)


def pipeline_fingerprint(stages: Sequence[Stage], graph_of: Callable[[int, Remat], Graph]) -> str:
    """Return the fingerprint of a plan for a pipeline.

    Args:
        stages: Its stages.
        graph_of: Gives the graph that was planned of a layer that others are equal to.
    """
    known: dict[tuple[int, Remat], str] = {}
    found: list[str] = []
    for stage in stages:
        for layer in stage.layers:
            key = (layer.equal_to, stage.remat)
            if key not in known:
                known[key] = fingerprint(graph_of(*key))
            found.append(known[key])
    return joint_fingerprint(found)


def _digest(lines: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for line in lines:
        digest.update(line.encode())
    return digest.hexdigest()[:32]


def _lines(graph: Graph) -> Iterator[str]:
    for tensor in graph.tensors:
        yield f"{tensor.shape}{tensor.dtype}{tensor.generated}\n"
    for operator in graph.operators:
        yield f"{operator.kind}{operator.inputs}{operator.outputs}{operator.detail}\n"
        if operator.structure is not None:
            yield f"{_structure(operator.structure)}\n"
        for body in operator.bodies:
            yield from _lines(body)
    yield f"{graph.inputs}{graph.outputs}{graph.aliases}\n"


def _structure(structure: Structure) -> tuple[object, ...]:
    return (
        structure.kind,
        tuple((part.operands, part.results, part.trips) for part in structure.parts),
        structure.carries,
        sorted(structure.stacked_operands),
        sorted(structure.stacked_results),
        structure.reverse,
    )
