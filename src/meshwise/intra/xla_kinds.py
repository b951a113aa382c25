"""What XLA:CPU takes operators for: fused, repeated, moved, known to YNNPACK.

Source: docs/xla_cpu.md section 3, and the files of XLA named below.
"""

from __future__ import annotations

from meshwise.graph.graph import Operator
from meshwise.intra.blocks import is_light
from meshwise.intra.values import FUSIBLE, OPAQUE, REDUCE, VIEW

VIEWS = frozenset(("reshape", "squeeze", "expand_dims", "optimization_barrier", "stop_gradient"))
# Not repeated for a second user. Source: XLA InstructionFusion::IsExpensive.
EXPENSIVE = frozenset(
    "exp exp2 expm1 log log1p tanh tan sin cos logistic sqrt rsqrt cbrt pow div rem erf "
    "erf_inv atan2 lgamma digamma gather random_bits threefry2x32".split()
)
# Elements change their place, so a result cannot lie over the operand.
MOVING = frozenset(
    "transpose slice dynamic_slice concatenate pad rev broadcast_in_dim gather".split()
)
# Source: XLA ynn_support.cc (IsElementwiseOpSupportedByYnn).
YNNPACK = frozenset(
    "abs ceil convert_element_type erf exp expm1 floor log log1p logistic neg round rsqrt sign "
    "sqrt tanh add add_any sub mul div max min square integer_pow".split()
)
# Dtypes of which a device may have no products: XLA converts to float32, and rounds the results.
# Source: XLA change_op_data_type.cc, float_normalization.cc.
NARROW = frozenset(("bfloat16", "float16"))
WIDE_BYTES = 4
PRODUCTS = frozenset(("dot_general", "conv_general_dilated"))
# To round to it is dear, with the steps that end so. Source: CpuInstructionFusion::IsExpensive.
DEAR_ROUNDING = "bfloat16"
ROUNDED = YNNPACK | frozenset("erfc logistic cos sin pow rem".split())
YNNPACK_DTYPES = frozenset(("float64", "float32", "bfloat16"))
# Source: XLA fusion_node_indexing_evaluation.cc (OpInvalidatesCache).
BRANCHING = frozenset(("concatenate", "pad"))
SUMS = frozenset(("add", "add_any"))
FUSIBLE_ALONE = frozenset(("gather", "random_bits", "threefry2x32"))
# XLA:CPU hands a reduction with such operands, used once, to one call of YNNPACK.
ABSORBED = frozenset(
    "mul add sub neg exp square integer_pow max min abs convert_element_type add_any".split()
)


def kind_of(op: Operator) -> int:
    """How XLA treats an operator; one of the kinds of `values`."""
    if op.kind in VIEWS:
        return VIEW
    if op.kind in FUSIBLE_ALONE:
        return FUSIBLE
    if not is_light(op):
        return OPAQUE
    if any(loop.kind != "parallel" for loop in op.rule.loops):
        return REDUCE
    return FUSIBLE
