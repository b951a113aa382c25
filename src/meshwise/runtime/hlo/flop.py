"""FLOP of the dense products and convolutions of a compiled program.

A dot is `2 M N K` with batch dims in M; a convolution 2 x output elements x elements of the
kernel that one output element reads, padding counted as if it were data, the holes of a dilated
input not: so a strided convolution and its two gradients count the same.
"""

from __future__ import annotations

import math
import re

from meshwise.errors import ProgramError
from meshwise.runtime.hlo.module import Computation, HloInstruction, HloShape, Module, parse_module
from meshwise.runtime.hlo.walk import executed

# Library calls whose first two operands are matrices and whose first result is their product.
_MATMUL_CALLS = re.compile(r"__onednn\$matmul|__cublas\$(gemm|lt\$matmul.*|lt\$groupedMatmul)$")
_CONV_CALLS = re.compile(r"__cudnn\$conv|__onednn\$convolution")


def hlo_dense_flop(text: str | Module, *, unknown_trip_count: int | None = None) -> int:
    """Return the FLOP of dots and convolutions in one run on one device, trip counts multiplied in.

    Every branch of a conditional counts once.  XLA may have turned a dot with a dim of size
    1 into an element-wise product and a sum; that is no dense product any more.

    Args:
        text: Optimised HLO text, or the module read from it.
        unknown_trip_count: Trips of loops whose count the text does not tell.

    Raises:
        ProgramError: The text cannot be read, or a loop around a dense product runs an unknown
            number of times and `unknown_trip_count` is None.
    """
    module = parse_module(text) if isinstance(text, str) else text
    items = executed(
        module,
        lambda computation, instruction: dense_flop(computation, instruction) or None,
        unknown_trip_count=unknown_trip_count,
    )
    return sum(item.value * item.count for item in items)


def dense_flop(computation: Computation, instruction: HloInstruction) -> int:
    """Return the FLOP of one instruction; 0 if it is no dense product or convolution.

    Args:
        computation: Where it stands.
        instruction: The instruction.

    Raises:
        ProgramError: Its shapes or dims cannot be read.
    """
    if instruction.opcode == "dot":
        left = _operand(computation, instruction, 0)
        contracted = (
            left.dims[dim] for dim in _ints(instruction.attribute("lhs_contracting_dims") or "")
        )
        return 2 * instruction.shapes[0].num_elements * math.prod(contracted)
    if instruction.opcode == "convolution":
        kernel = _operand(computation, instruction, 1)
        window = instruction.attribute("window") or ""
        dilation = re.search(r"lhs_dilate=([\dx]+)", window)
        holes = math.prod(int(size) for size in dilation.group(1).split("x")) if dilation else 1
        reads = instruction.shapes[0].num_elements * _kernel_reads(instruction, kernel)
        return 2 * reads // holes
    if instruction.opcode == "custom-call":
        return _custom_call_flop(computation, instruction)
    return 0


def _custom_call_flop(computation: Computation, instruction: HloInstruction) -> int:
    target = (instruction.attribute("custom_call_target") or "").strip('"')
    if _MATMUL_CALLS.match(target):
        left = _operand(computation, instruction, 0)
        contracted = _gemm_contracting_dims(instruction)
        if contracted is not None:
            size = math.prod(left.dims[dim] for dim in contracted)
        else:
            # The left matrix has M K elements and the result M N, batch dims apart.
            result = instruction.shapes[0]
            size = left.num_elements * result.dims[-1] // max(1, result.num_elements)
        return 2 * instruction.shapes[0].num_elements * size
    if _CONV_CALLS.match(target):
        return _conv_call_flop(computation, instruction, target)
    return 0


def _gemm_contracting_dims(instruction: HloInstruction) -> tuple[int, ...] | None:
    config = instruction.backend_config
    inner = config.get("gemm_backend_config", config)
    numbers = inner.get("dot_dimension_numbers") if isinstance(inner, dict) else None
    if not isinstance(numbers, dict):
        return None
    return tuple(int(dim) for dim in numbers.get("lhs_contracting_dimensions", ()))


def _conv_call_flop(computation: Computation, instruction: HloInstruction, target: str) -> int:
    """Library convolutions: each of the three forms does the work of the forward one."""
    first, second = (_operand(computation, instruction, number) for number in (0, 1))
    result = instruction.shapes[0]
    if "BackwardInput" in target:
        return 2 * first.num_elements * _kernel_reads(instruction, second)
    if "BackwardFilter" in target:
        return 2 * second.num_elements * _kernel_reads(instruction, result)
    return 2 * result.num_elements * _kernel_reads(instruction, second)


def _kernel_reads(instruction: HloInstruction, kernel: HloShape) -> int:
    """Kernel elements that one output element reads: window times input features of its group."""
    labels = instruction.attribute("dim_labels") or ""
    found = re.fullmatch(r"[^_]+_([^-]+)->.+", labels)
    if found is None:
        raise ProgramError(f"HLO text: {instruction.name!r} has no readable dim_labels {labels!r}")
    return kernel.num_elements // kernel.dims[found.group(1).index("o")]


def _ints(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)))


def _operand(computation: Computation, instruction: HloInstruction, number: int) -> HloShape:
    return computation.operand_shapes(instruction)[number][0]
