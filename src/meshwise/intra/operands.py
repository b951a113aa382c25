"""What XLA makes of operands before an operator reads them: edges, orders of dims.

Source: docs/xla_cpu.md section 3; ConvCanonicalization and DotDecomposer of XLA:CPU.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from meshwise.graph.graph import Operator, Tensor
from meshwise.graph.halo import edge_elements, extended_shape
from meshwise.intra.values import FUSIBLE, OPAQUE, VIEW, Values
from meshwise.plan.decision import OperatorDecision

_INDEX_BYTES = 4
_SCATTER_ADD = "select_and_scatter_add"


def with_edges(
    out: Values,
    time: int,
    op: Operator,
    chosen: OperatorDecision,
    tensors: Sequence[Tensor],
    sizes: Sequence[int],
    operands: Sequence[int],
) -> list[int]:
    """The operands with the edges of the neighbours around them."""
    found = list(operands)
    shapes = [tensor.shape for tensor in tensors]
    parts: dict[int, list[int]] = {}
    for edge, elements in edge_elements(op.rule, chosen.strategy, sizes, shapes):
        k = edge.halo.operand
        tensor = tensors[k]
        num_bytes = elements * tensor.itemsize
        sent = out.rewritten(operands[k], time, num_bytes)
        parts.setdefault(k, [operands[k]]).append(
            out.add(OPAQUE, (sent,), num_bytes, out.tensor[sent], time, is_copy=True)
        )
    for k, pieces in parts.items():
        shape = extended_shape(op.rule, chosen.strategy, sizes, k, shapes[k])
        num_bytes = math.prod(shape) * tensors[k].itemsize
        found[k] = out.add(
            FUSIBLE,
            tuple(pieces),
            num_bytes,
            out.tensor[operands[k]],
            time,
            is_moving=True,
            is_copy=True,
        )
    return found


def operands_as_read(
    out: Values,
    time: int,
    op: Operator,
    operands: Sequence[int],
    shapes: Sequence[tuple[int, ...]],
) -> list[int]:
    """The operands in the order of dims in which the operator reads them.

    Args:
        out: Where values are added.
        time: Position of the operator.
        op: The operator.
        operands: Its operands.
        shapes: Their shapes on one device; where `needs_shapes` says so.
    """
    if op.heavy and op.kind == "dot_general":
        return _dot_operands(out, time, op, operands, shapes)
    if op.kind.startswith("scatter"):
        # Indices and updates in the order of dims that XLA wants.
        return [operands[0], *(out.rewritten(v, time) for v in operands[1:])]
    if op.kind == _SCATTER_ADD:
        return _places_of_maxima(out, time, op, operands, shapes[1])
    if op.kind == "conv_general_dilated":
        wanted = (_image_in_order, _kernel_in_order)
        return [
            v if in_order(spec) else out.rewritten(v, time)
            for v, in_order, spec in zip(operands, wanted, _specs(op)[:2], strict=True)
        ]
    return list(operands)


def needs_shapes(op: Operator) -> bool:
    """Whether shapes say how XLA reads the operands."""
    return op.kind == _SCATTER_ADD or (op.heavy and op.kind == "dot_general")


def padded_elements(op: Operator, shape: Sequence[int]) -> int:
    """Elements of an operand of windows with the padding around it.

    Args:
        op: A sum over the places that windows select.
        shape: Of the operand on one device.
    """
    found = re.search(r"padding=\(((?:\(\d+, \d+\)(?:, |,)?)+)\)", op.detail)
    pairs = re.findall(r"\((\d+), (\d+)\)", found[1]) if found else [(0, 0)] * len(shape)
    return math.prod(n + int(low) + int(high) for n, (low, high) in zip(shape, pairs, strict=True))


def _places_of_maxima(
    out: Values, time: int, op: Operator, operands: Sequence[int], shape: Sequence[int]
) -> list[int]:
    """XLA finds where in each window the largest element is, by its index along each dim.

    Source: SelectAndScatterExpander of XLA:CPU.
    """
    source, operand = operands
    rank = len(op.rule.operands[1])
    count = padded_elements(op, shape)
    padded = out.rewritten(operand, time, out.num_bytes[operand] * count // math.prod(shape))
    index_bytes = _INDEX_BYTES * count
    tensor = out.tensor[operand]
    numbers = [out.add(OPAQUE, (), index_bytes, tensor, time) for _ in range(rank)]
    places_bytes = _INDEX_BYTES * rank * out.num_elements(source)
    found = out.add(
        OPAQUE, (padded, *numbers), out.num_bytes[source] + places_bytes, out.tensor[source], time
    )
    places = out.add(FUSIBLE, (found,), places_bytes, out.tensor[source], time, is_moving=True)
    return [source, places]


def is_turned(op: Operator) -> bool:
    """Whether XLA makes the result in another order of dims and copies it."""
    return op.kind == "conv_general_dilated" and not _image_in_order(_specs(op)[2])


def _specs(op: Operator) -> tuple[tuple[int, ...], ...]:
    """Places of (batch, feature, spatial) of image and result, (out, in, spatial) of the kernel."""
    found = re.findall(r"(?:lhs|rhs|out)_spec=\(([\d, ]+)\)", op.detail)
    return tuple(tuple(int(word) for word in text.split(",")) for text in found)


def _image_in_order(spec: tuple[int, ...]) -> bool:
    return spec == (0, len(spec) - 1, *range(1, len(spec) - 1))


def _kernel_in_order(spec: tuple[int, ...]) -> bool:
    return spec == (len(spec) - 1, len(spec) - 2, *range(len(spec) - 2))


def product_shape(op: Operator, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...] | None:
    """The three dims of a product that XLA splits or joins afterwards; None if it does neither.

    Args:
        op: The product.
        shapes: Of its operands on one device.
    """
    left, right = ({loops[0] for loops in dims if loops} for dims in op.rule.operands[:2])
    result = [loops[0] for loops in op.rule.results[0] if loops]
    batch = [x for x in result if x in left and x in right]
    if len(result) == len(batch) + 2 and not _has_batch_of_one(op, batch, shapes):
        return None
    return _sizes(op, result, batch, [x for x in result if x in left and x not in right])


def _has_batch_of_one(
    op: Operator, batch: Sequence[int], shapes: Sequence[tuple[int, ...]]
) -> bool:
    """Whether a batch dim of a product has one element on a device: XLA drops it.

    Source: XLA algebraic_simplifier.cc (RemoveDegenerateDimensionFromDot).
    """
    pairs = zip(op.rule.operands[0], shapes[0], strict=True)
    return any(size == 1 and loops and loops[0] in batch for loops, size in pairs)


def _sizes(
    op: Operator, dims: Sequence[int], batch: Sequence[int], group: Sequence[int]
) -> tuple[int, ...]:
    """Sizes of the batch and of two groups of dims, in the order of the dims."""
    rest = [x for x in dims if x >= 0 and x not in batch]
    first = [x for x in rest if (x in group) == (rest[0] in group)]
    second = [x for x in rest if x not in first]
    return tuple(math.prod(op.rule.loops[x].size for x in part) for part in (batch, first, second))


def _dot_operands(
    out: Values,
    time: int,
    op: Operator,
    operands: Sequence[int],
    shapes: Sequence[tuple[int, ...]],
) -> list[int]:
    """XLA rewrites a product to [batch, M, K] x [batch, K, N], unless it is one already.

    Where it drops a batch dim of one element, all operands are reshaped, and no transpose meets
    the product any more.
    """
    left, right = ([loops[0] if loops else -1 for loops in dims] for dims in op.rule.operands[:2])
    result = {loops[0] for loops in op.rule.results[0] if loops}
    batch = [x for x in left if x >= 0 and x in right and x in result]
    contracted = [x for x in left if x >= 0 and x in right and x not in result]

    def is_canonical(dims: list[int]) -> bool:
        return dims[: len(batch)] == batch and len(dims) <= len(batch) + 2 and len(contracted) <= 1

    is_reshaped = _has_batch_of_one(op, batch, shapes)
    if is_canonical(left) and is_canonical(right) and not is_reshaped:
        return list(operands)
    free = [[x for x in dims if x not in batch and x not in contracted] for dims in (left, right)]
    wanted = ([*batch, *free[0], *contracted], [*batch, *contracted, *free[1]])
    found: list[int] = []
    for value, dims, want in zip(operands, (left, right), wanted, strict=True):
        if len(dims) == len(batch) + 2 and dims[: len(batch)] == batch and not is_reshaped:
            # Read as it is: a transpose of whole operands is folded into the product.
            found.append(value)
            continue
        in_order = [x for x in dims if x >= 0] == [x for x in want if x >= 0]
        kind = VIEW if in_order else FUSIBLE
        found.append(
            out.add(
                kind,
                (value,),
                out.num_bytes[value],
                out.tensor[value],
                time,
                is_moving=not in_order,
            )
        )
        if in_order:
            out.flat[found[-1]] = _sizes(op, want, batch, contracted)
    return found
