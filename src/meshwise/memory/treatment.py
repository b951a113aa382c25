"""How XLA treats operators: what it fuses, repeats, moves and copies.

Source: docs/xla_cpu.md section 3, and the files of XLA named below.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType

from meshwise.graph.graph import Graph, Operator
from meshwise.graph.light import is_bitcast, is_light
from meshwise.memory.local_program import InstructionKind, Treatment

# Not repeated for a second reader. Source: XLA InstructionFusion::IsExpensive.
EXPENSIVE = frozenset(
    "exp exp2 expm1 log log1p tanh tan sin cos logistic sqrt rsqrt cbrt pow div rem erf "
    "erf_inv atan2 lgamma digamma gather random_bits threefry2x32".split()
)
# Of a concatenation or a pad that several read XLA emits no second copy.
# Source: XLA fusion_node_indexing_evaluation.cc (OpInvalidatesCache).
BRANCHING = frozenset(("concatenate", "pad"))
# Elements change their place, so a result cannot lie over the operand.
MOVING = frozenset(
    "transpose slice dynamic_slice concatenate pad rev broadcast_in_dim gather".split()
)
FUSIBLE_ALONE = frozenset(("gather", "random_bits", "threefry2x32"))
# `exp(-x x)`, `1 / |x|` and `1 / (x x)` are the dear parts of an `erfc`.
# Source: StableHLO's decomposition of chlo.erfc; compiled programs (JAX 0.10.2).
PARTS: Mapping[str, int] = MappingProxyType({"erfc": 3})


def treatment(op: Operator, shapes: Sequence[tuple[int, ...]]) -> Treatment:
    """Return how XLA treats an operator without bodies, on a CPU; on a GPU it is taken to be alike.

    Args:
        op: The operator.
        shapes: Shapes of the operands on one device, of dense products and convolutions.
    """
    if op.kind == "dot_general" and op.heavy:
        # XLA makes one batch dim of all, and drops it where a device has one row of it.
        # Source: XLA dot_decomposer.cc, RemoveDegenerateDimensionFromDot.
        found = _rewritten_factors(op, shapes)
        return Treatment(
            kind=InstructionKind.OPAQUE,
            is_reshaped=len(op.rule.results[0]) != 2,
            rewritten=tuple((k, kind) for k, kind, _ in found),
            swapped=tuple(k for k, _, is_swapped in found if is_swapped),
        )
    if op.dim_orders:
        image, kernel, result = op.dim_orders
        is_wanted = (_is_feature_last(image), _is_kernel_in_order(kernel))
        return Treatment(
            kind=InstructionKind.OPAQUE,
            rewritten=tuple(
                (k, InstructionKind.FUSIBLE) for k, wanted in enumerate(is_wanted) if not wanted
            ),
            is_copied=not _is_feature_last(result),
        )
    if op.kind == "select_and_scatter_add":
        # XLA finds where in each window the largest element is, by its index along each dim.
        # Source: SelectAndScatterExpander of XLA:CPU.
        rank = len(op.rule.operands[1])
        return Treatment(
            kind=InstructionKind.OPAQUE, rewritten=((1, InstructionKind.FUSIBLE),), num_indices=rank
        )
    return _treatment_by_name(op.kind, _kind(op), len(op.inputs))


def image_dims(graph: Graph) -> dict[tuple[int, ...], tuple[int, int]]:
    """Return for shapes of operands and results of convolutions the dims of batch and features."""
    found: dict[tuple[int, ...], tuple[int, int]] = {}
    for op in graph.operators:
        if op.heavy and op.dim_orders:
            image, _, result = op.dim_orders
            found[graph.tensors[op.inputs[0]].shape] = image[0], image[1]
            found[graph.tensors[op.outputs[0]].shape] = result[0], result[1]
    return found


def is_batched(op: Operator) -> bool:
    """Return whether a product has a batch dim, which both factors and the result have."""
    if len(op.inputs) < 2:  # a kernel of one operand
        return False
    left, right = ({loops[0] for loops in dims if loops} for dims in op.rule.operands[:2])
    return any(loops and loops[0] in left & right for loops in op.rule.results[0])


def is_grouped(op: Operator) -> bool:
    """Return whether a product sums over several dims, which both factors have."""
    left, right = ({loops[0] for loops in dims if loops} for dims in op.rule.operands[:2])
    result = {loops[0] for loops in op.rule.results[0] if loops}
    return len((left & right) - result) > 1


def _is_feature_last(order: Sequence[int]) -> bool:
    """Return whether an image or a result lies as (batch, space, feature).

    Source: XLA conv_canonicalization.cc.
    """
    return tuple(order) == (0, len(order) - 1, *range(1, len(order) - 1))


def _is_kernel_in_order(order: Sequence[int]) -> bool:
    """Return whether a kernel lies as (space, features, results)."""
    return tuple(order) == (len(order) - 1, len(order) - 2, *range(len(order) - 2))


@cache
def _treatment_by_name(name: str, kind: InstructionKind, num_operands: int) -> Treatment:
    """Return the treatment of an operator whose dims do not matter."""
    is_scatter = name.startswith("scatter")
    # Indices and updates of a scatter are wanted in another order of dims.
    moved = range(1, num_operands) if is_scatter else ()
    return Treatment(
        kind=kind,
        is_expensive=name in EXPENSIVE or name in BRANCHING or name in PARTS,
        is_moving=name in MOVING,
        is_in_place=is_scatter,
        rewritten=tuple((k, InstructionKind.FUSIBLE) for k in moved),
        num_parts=PARTS.get(name, 0),
    )


def _kind(op: Operator) -> InstructionKind:
    if is_bitcast(op):
        return InstructionKind.VIEW
    if op.kind in FUSIBLE_ALONE:
        return InstructionKind.FUSIBLE
    if not is_light(op):
        return InstructionKind.OPAQUE
    if any(loop.kind != "parallel" for loop in op.rule.loops):
        return InstructionKind.REDUCE
    return InstructionKind.FUSIBLE


def _rewritten_factors(
    op: Operator, shapes: Sequence[tuple[int, ...]]
) -> tuple[tuple[int, InstructionKind, bool], ...]:
    """Return which factors of a product are transposed or reshaped before it.

    XLA rewrites a product to [batch, M, K] x [batch, K, N], unless it is one already; the transpose
    of a whole factor of two such dims is folded into it, unless a batch dim of one row is dropped.
    Of each factor: its position, how it is rewritten, and whether M or N and K change places.

    Source: XLA dot_decomposer.cc, TransposeFolding.
    """
    left, right = ([loops[0] if loops else -1 for loops in dims] for dims in op.rule.operands[:2])
    result = {loops[0] for loops in op.rule.results[0] if loops}
    batch = [x for x in left if x >= 0 and x in right and x in result]
    contracted = [x for x in left if x >= 0 and x in right and x not in result]
    count = len(batch)
    is_dropped = any(n == 1 and x in batch for x, n in zip(left, shapes[0], strict=True))

    def is_plain(dims: list[int]) -> bool:
        return dims[:count] == batch and len(dims) <= count + 2 and len(contracted) <= 1

    if is_plain(left) and is_plain(right) and not is_dropped:
        return ()
    found: list[tuple[int, InstructionKind, bool]] = []
    for k, dims in enumerate((left, right)):
        free = [x for x in dims if x >= 0 and x not in batch and x not in contracted]
        orders = [*batch, *free, *contracted], [*batch, *contracted, *free]
        want, other = orders if k == 0 else orders[::-1]
        if len(dims) == count + 2 and dims[:count] == batch and not is_dropped:
            continue
        in_order = [x for x in dims if x >= 0] == want
        kind = InstructionKind.VIEW if in_order else InstructionKind.FUSIBLE
        found.append((k, kind, not in_order and [x for x in dims if x >= 0] == other))
    return tuple(found)
