"""The kernels of a program that XLA:GPU compiled, how often each runs, and the bytes that it moves.

Bytes are those of operands and results, once a run: what a kernel that reads and writes each array
once moves through the memory of the device.  A slice counts as what it takes, an update in place
as what it writes.  Caches are not modelled.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from meshwise.runtime.hlo.loops import called_names
from meshwise.runtime.hlo.module import Computation, HloInstruction, HloShape, Module
from meshwise.runtime.hlo.walk import Executed, executed

# What runs the computations that it calls one after the other; all others call what they fuse.
_CONTROL = frozenset(("while", "conditional", "call"))
# What is no kernel: names, and ends of what was started before.
_FREE = frozenset(
    (
        *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all"),
        *("copy-done", "async-done", "async-update", "partition-id", "replica-id"),
    )
)
_VIEWS = frozenset(("bitcast", "reshape"))
_SLICES = frozenset(("dynamic-slice", "slice", "gather"))
_UPDATE = "dynamic-update-slice"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A kernel.

    Attributes:
        name: Name of the instruction.
        kind: `product`, `copy`, `reduction`, or `element-wise` for all other fusions.
        is_in_loop: Whether a loop runs it.
        num_bytes: Bytes that a run reads and writes.
        flop: FLOP of a run, of a product; else 0.
        op_name: What JAX calls the operator.
    """

    name: str
    kind: str
    is_in_loop: bool
    num_bytes: int
    flop: int
    op_name: str


def kernels(module: Module) -> tuple[Executed[Kernel], ...]:
    """Return the kernels of a scheduled program of XLA:GPU, and how often each runs.

    Args:
        module: The program.

    Raises:
        ProgramError: a loop runs an unknown number of times.
    """
    scheduled = set(_scheduled(module, module.entry))

    def read(computation: Computation, instruction: HloInstruction) -> Kernel | None:
        if computation.name not in scheduled or instruction.opcode in (*_FREE, *_CONTROL):
            return None
        return Kernel(
            name=instruction.name,
            kind=_kind(module, instruction),
            is_in_loop=computation.name != module.entry,
            num_bytes=_num_bytes(module, computation, instruction),
            flop=_flop(computation, instruction),
            op_name=instruction.op_name,
        )

    return executed(module, read)


def _scheduled(module: Module, name: str) -> Iterator[str]:
    """Return the computations whose instructions are kernels."""
    yield name
    for instruction in module.computations[name].instructions:
        if instruction.opcode in _CONTROL:
            for called in called_names(instruction):
                yield from _scheduled(module, called)


def _fused(module: Module, instruction: HloInstruction) -> Computation | None:
    """Return what a fusion computes."""
    if instruction.opcode != "fusion":
        return None
    (name,) = instruction.computation_names("calls")
    return module.computations[name]


def _kind(module: Module, instruction: HloInstruction) -> str:
    fused = _fused(module, instruction)
    if fused is None:
        names = {"custom-call": "product", "copy": "copy", "copy-start": "copy"}
        return names.get(instruction.opcode, instruction.opcode)
    opcodes = {inner.opcode for inner in fused.instructions} - {"parameter", "tuple", "bitcast"}
    if "custom-call" in opcodes or "dot" in opcodes:
        return "product"
    if opcodes <= {"copy", "transpose"}:
        return "copy"
    return "reduction" if "reduce" in opcodes else "element-wise"


def _num_bytes(module: Module, computation: Computation, instruction: HloInstruction) -> int:
    fused = _fused(module, instruction)
    operands = computation.operand_shapes(instruction)
    if fused is None:
        if instruction.opcode in _SLICES:
            return 2 * _size(instruction.shapes)
        if instruction.opcode == _UPDATE:
            return 2 * _size(operands[1])
        return sum(map(_size, operands)) + _size(_without_workspace(instruction))
    reads = sum(_bytes_read(fused, n, _size(shapes)) for n, shapes in enumerate(operands))
    return reads + _bytes_written(fused, fused.root)


def _without_workspace(instruction: HloInstruction) -> tuple[HloShape, ...]:
    """Return the results of an instruction; scratch memory of a library is its last one, as s8."""
    shapes = instruction.shapes
    if instruction.opcode != "custom-call" or len(shapes) < 2:
        return shapes
    return shapes if shapes[len(shapes) - 1].dtype != "s8" else shapes[:-1]


def _bytes_read(fused: Computation, number: int, whole: int) -> int:
    """Return the bytes that a fusion reads of an operand: of slices only what they take."""
    parameter = fused.parameter(number)
    if parameter is None:
        return whole
    names, found = {parameter.name}, 0
    for user in fused.instructions:
        places = [n for n, name in enumerate(user.operands) if name in names]
        if not places:
            continue
        if user.opcode in _VIEWS:
            names.add(user.name)
        elif user.opcode in _SLICES and places == [0]:
            found += _size(user.shapes)
        elif user.opcode != _UPDATE or places != [0]:
            return whole
    return min(found, whole)


def _bytes_written(fused: Computation, result: HloInstruction) -> int:
    """Return the bytes of a result: of an update in place only what it writes."""
    if result.opcode == "tuple":
        return sum(_bytes_written(fused, fused.by_name[name]) for name in result.operands)
    if result.opcode in _VIEWS and result.operands[0] in fused.by_name:
        return _bytes_written(fused, fused.by_name[result.operands[0]])
    if result.opcode == _UPDATE:
        return _size(fused.by_name[result.operands[1]].shapes)
    return _size(result.shapes)


def _size(shapes: tuple[HloShape, ...]) -> int:
    return sum(shape.num_bytes for shape in shapes)


def _flop(computation: Computation, instruction: HloInstruction) -> int:
    """Return the FLOP of a product that a library computes: two for each term of its sums."""
    config = instruction.backend_config.get("gemm_backend_config")
    if not isinstance(config, dict):
        return 0
    (left, *_), *_ = computation.operand_shapes(instruction)
    dims = config["dot_dimension_numbers"]["lhs_contracting_dimensions"]
    terms = math.prod(left.dims[int(dim)] for dim in dims)
    return 2 * instruction.shapes[0].num_elements * terms
