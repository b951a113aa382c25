"""Micro-batches in a piece: what of its crossing values there is when.

An activation crosses a cut micro-batch by micro-batch, as rows.  A small value that all rows have a
part in crosses it once, after the last micro-batch; its cotangent crosses before the first one.
With statistics of each micro-batch alone it crosses micro-batch by micro-batch too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from meshwise.errors import TraceError
from meshwise.jax_compat.source_lines import source_line
from meshwise.trace.program import Node, Program
from meshwise.trace.time.analyze import analyze
from meshwise.trace.time.state import (
    AFTER,
    AFTER_LOOP,
    LOCAL,
    PARTIAL,
    SPLIT,
    Batch,
    BlockTime,
    Crossed,
    TimeState,
)

# A term of the loss or a few statistics; what is larger is meant to be rows.
_JOINED_BYTES = 1 << 16


def is_joined(state: TimeState, num_bytes: int) -> bool:
    """Return whether a value that is no rows can cross a cut: all rows have a part in it."""
    return state.kind in (PARTIAL, LOCAL, AFTER) and num_bytes <= _JOINED_BYTES


def analyzed(
    program: Program,
    batch_dims: Mapping[int, int],
    crossed: Crossed,
    batch: Batch,
    *,
    local_statistics: bool,
) -> BlockTime:
    """Return the micro-batches of a piece.

    Args:
        program: The program of the piece.
        batch_dims: Batch dim of each input that holds rows, by position.
        crossed: What comes from other pieces and goes to them.
        batch: How the batch is cut.
        local_statistics: Let what does not separate become a statistic of each micro-batch.

    Raises:
        TraceError: it does not separate, or needs the rows of all micro-batches at once.
    """
    block = analyze(program, batch_dims, batch, local_statistics=local_statistics, crossed=crossed)
    node = _first_of_all_rows(program, block)
    if node is None:
        return block
    text = (
        f"a stage runs micro-batch by micro-batch, but {node.name} at {source_line(node.source)} "
        "needs the rows of the whole batch; use one stage"
    )
    if not local_statistics:
        with contextlib.suppress(TraceError):
            analyzed(program, batch_dims, crossed, batch, local_statistics=True)
            text += ', or accept microbatch_statistics="local"'
    raise TraceError(text)


def _first_of_all_rows(program: Program, block: BlockTime) -> Node | None:
    """Return the first operation after the micro-batches that reads rows of all of them."""
    pairs = zip(program.nodes, block.nodes, strict=True)
    late = (node for node, decision in pairs if decision.region == AFTER_LOOP)
    of_rows = (node for node in late if any(block.states[i].kind == SPLIT for i in node.inputs))
    return next(of_rows, None)
