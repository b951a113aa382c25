"""A text that two graphs share if one plan fits both."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from meshwise.graph.graph import Graph


def fingerprint(graph: Graph) -> str:
    """Hexadecimal digest of the computation; names and source lines do not enter."""
    digest = hashlib.sha256()
    for line in _lines(graph):
        digest.update(line.encode())
    return digest.hexdigest()[:32]


def _lines(graph: Graph) -> Iterator[str]:
    for tensor in graph.tensors:
        yield f"{tensor.shape}{tensor.dtype}{tensor.generated}\n"
    for operator in graph.operators:
        yield f"{operator.kind}{operator.inputs}{operator.outputs}{operator.detail}\n"
        if operator.body is not None:
            body = operator.body
            yield f"{body.num_consts} {body.num_carry} {body.length} {body.reverse}\n"
            yield from _lines(body.graph)
    yield f"{graph.inputs}{graph.outputs}{graph.aliases}\n"
